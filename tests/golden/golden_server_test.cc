// Frozen bytes of the data directory: the cluster secret and the catalog. A failure here means that
// a daemon would not start on what a released one left, or lose what its pages need.
#include <gtest/gtest.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "cachesvc/base/bytes.h"
#include "cachesvc/server/catalog.h"
#include "cachesvc/server/secret.h"
#include "tests/golden/golden.h"
#include "tests/support/npz.h"
#include "tests/unit/cachesvc/base/identity_samples.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

constexpr uint8_t kFirstRandomByte = 0x40;

}  // namespace
}  // namespace crumb

// Linked in the place of the system call (--wrap): random bytes count upwards, three at a time.
extern "C" ssize_t __wrap_getrandom(void* buffer, size_t bytes, unsigned flags);
ssize_t __wrap_getrandom(void* buffer, size_t bytes, unsigned /*flags*/) {
  static uint8_t next = crumb::kFirstRandomByte;
  const size_t count = std::min<size_t>(bytes, 3);
  auto* out = static_cast<uint8_t*>(buffer);
  for (size_t i = 0; i < count; ++i) out[i] = next++;
  return static_cast<ssize_t>(count);
}

namespace crumb {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
}

ClusterSecret GoldenSecret() {
  ClusterSecret secret;
  for (size_t i = 0; i < secret.bytes.size(); ++i) {
    secret.bytes[i] = static_cast<uint8_t>(kFirstRandomByte + i);
  }
  return secret;
}

TEST(GoldenServer, SecretIsWritten) {
  TempDir temp;
  const auto directory = Directory::Open(temp.path());
  ASSERT_TRUE(directory.ok()) << directory.status();
  const auto made = LoadOrMakeSecret(*directory);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->bytes, GoldenSecret().bytes);
  const std::string content = Content(temp / kSecretName);
  golden::Expect("secret.hex", "the secret 40 41 .. 5f", AsBytes(content));
}

TEST(GoldenServer, SecretIsRead) {
  TempDir temp;
  const std::string frozen = golden::Read("secret.hex");
  ASSERT_EQ(frozen.substr(0, 8), "CRUMBSEC");
  Write(temp / kSecretName, frozen);
  const auto directory = Directory::Open(temp.path());
  ASSERT_TRUE(directory.ok()) << directory.status();
  const auto secret = LoadOrMakeSecret(*directory);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->bytes, GoldenSecret().bytes);
  EXPECT_EQ(Content(temp / kSecretName), frozen);
}

// The hash and name of the set are frozen with the sample.
constexpr char kSetPath[] = "smollm2/smollm2_sample.rot";
constexpr char kSetHash[] = "79169abc74e7858a543d10bb8d164fbe5c261429de378210d011f61ce3ed28f6";

std::shared_ptr<const RotationSet> Rotations() {
  const auto set = RotationSet::Load(testing::TestDataPath(kSetPath));
  EXPECT_TRUE(set.ok()) << set.status();
  return set.ok() ? *set : nullptr;
}

// In the order in which they are put. The second has every field set.
std::vector<CodecDescriptor> Descriptors(size_t layout, const Sha256& set) {
  if (layout == 0) return {CodecDescriptor::Default(CodecKind::kRaw, {})};
  return {CodecDescriptor::Default(CodecKind::kOscarInt2, set),
          CodecDescriptor::Default(CodecKind::kRaw, {})};
}

std::vector<CatalogLayout> Layouts(const Sha256& set) {
  const auto gqa = Layout::Make(testing::GqaIdentity());
  const auto hybrid = Layout::Make(testing::HybridIdentity());
  EXPECT_TRUE(gqa.ok() && hybrid.ok());
  std::vector<CatalogLayout> layouts(2);
  layouts[0] = {.tenant = "default",
                .canonical = gqa->canonical(),
                .name = {},
                .wish = {},
                .codec_id = Descriptors(0, set)[0].id(),
                .descriptor_ids = {}};
  layouts[1] = {.tenant = "tenant-7",
                .canonical = hybrid->canonical(),
                .name = "hybrid",
                .wish = {.codec = "oscar-int2",
                         .rotation = kSetHash,
                         .effort = "best",
                         .metadata = "bf16",
                         .keep_non_finite_raw = true},
                .codec_id = Descriptors(1, set)[0].id(),
                .descriptor_ids = {}};
  return layouts;
}

TEST(GoldenServer, CatalogIsWritten) {
  TempDir temp;
  const auto set = Rotations();
  ASSERT_NE(set, nullptr);
  {
    auto catalog = Catalog::Open(temp.path());
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    ASSERT_TRUE((*catalog)->PutRotation(set).ok());
    const std::vector<CatalogLayout> layouts = Layouts(set->hash());
    for (size_t i = 0; i < layouts.size(); ++i) {
      ASSERT_TRUE((*catalog)->PutLayout(layouts[i], Descriptors(i, set->hash())).ok());
    }
  }
  const std::string content = Content(temp / kCatalogName);
  golden::Expect("catalog.hex", "a rotation set, raw, a layout, oscar-int2, a layout with a wish",
                 AsBytes(content));
}

TEST(GoldenServer, CatalogIsRead) {
  TempDir temp;
  const std::string frozen = golden::Read("catalog.hex");
  ASSERT_EQ(frozen.substr(0, 8), "CRUMBCAT");
  Write(temp / kCatalogName, frozen);
  auto catalog = Catalog::Open(temp.path());
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->dropped(), 0u);

  ASSERT_EQ((*catalog)->rotations().size(), 1u);
  const CatalogRotation& rotation = (*catalog)->rotations()[0];
  EXPECT_EQ(Hex(rotation.hash), kSetHash);
  EXPECT_EQ(rotation.model, Rotations()->contents().model);
  EXPECT_EQ(rotation.revision, Rotations()->contents().revision);
  EXPECT_EQ(rotation.order, 1u);

  std::vector<CatalogLayout> want = Layouts(rotation.hash);
  for (size_t i = 0; i < want.size(); ++i) {
    for (const CodecDescriptor& descriptor : Descriptors(i, rotation.hash)) {
      want[i].descriptor_ids.push_back(descriptor.id());
      const CodecDescriptor* found = (*catalog)->FindDescriptor(descriptor.id());
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->Canonical(), descriptor.Canonical());
    }
    std::sort(want[i].descriptor_ids.begin(), want[i].descriptor_ids.end());
  }
  EXPECT_EQ((*catalog)->layouts(), want);

  // What is known already is not written again.
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE((*catalog)->PutLayout(want[i], Descriptors(i, rotation.hash)).ok());
  }
  EXPECT_EQ(Content(temp / kCatalogName), frozen);
}

// A torn tail makes the daemon write all records anew: the same bytes again.
TEST(GoldenServer, CatalogIsRewritten) {
  TempDir temp;
  const std::string frozen = golden::Read("catalog.hex");
  Write(temp / kCatalogName, frozen + "crec torn");
  const auto catalog = Catalog::Open(temp.path());
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->dropped(), 1u);
  EXPECT_EQ(Content(temp / kCatalogName), frozen);
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::golden::Main(argc, argv); }
