// The catalog: what was put is there after any end of the process; damage costs what it touches.
#include "cachesvc/server/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cachesvc/base/bytes.h"
#include "tests/unit/cachesvc/server/rotation_samples.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::Calibration;
using ::testing::HasSubstr;
using testing::SmallIdentity;
using testing::SmallSet;

CatalogLayout Sample(const std::string& name, const std::string& name_space = "") {
  Identity identity = SmallIdentity();
  identity.name_space = name_space;
  const auto layout = Layout::Make(identity);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return {.tenant = "default",
          .canonical = layout->canonical(),
          .name = name,
          .wish = {.codec = "crumb-int4",
                   .rotation = {},
                   .effort = "best",
                   .metadata = {},
                   .keep_non_finite_raw = true},
          .codec_id = CodecDescriptor::Default(CodecKind::kCrumbInt4, {}).id(),
          .descriptor_ids = {}};
}

std::vector<CodecDescriptor> Int4Ladder() {
  return {CodecDescriptor::Default(CodecKind::kCrumbInt4, {}),
          CodecDescriptor::Default(CodecKind::kRaw, {})};
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
}

class CatalogTest : public ::testing::Test {
 protected:
  std::unique_ptr<Catalog> Open() {
    auto catalog = Catalog::Open(temp_.path());
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return catalog.ok() ? *std::move(catalog) : nullptr;
  }
  std::string file() const { return temp_ / "catalog"; }

  TempDir temp_;
};

TEST_F(CatalogTest, LayoutsAndDescriptorsComeBack) {
  {
    auto catalog = Open();
    ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
    ASSERT_TRUE(catalog->PutLayout(Sample("b", "lora:1"), Int4Ladder()).ok());
  }
  struct stat info {};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto catalog = Open();
  EXPECT_EQ(catalog->dropped(), 0u);
  ASSERT_EQ(catalog->layouts().size(), 2u);
  const CatalogLayout& b = catalog->layouts()[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.wish, Sample("b").wish);
  EXPECT_EQ(b.descriptor_ids.size(), 2u);
  for (const CodecDescriptor& descriptor : Int4Ladder()) {
    const CodecDescriptor* found = catalog->FindDescriptor(descriptor.id());
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->Canonical(), descriptor.Canonical());
  }
  EXPECT_EQ(catalog->FindDescriptor(12345), nullptr);
}

TEST_F(CatalogTest, AnotherCodecKeepsTheOldDescriptors) {
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  CatalogLayout changed = Sample("");
  changed.wish.codec = "naive-int2";
  const auto naive = CodecDescriptor::Default(CodecKind::kNaiveInt2, {});
  ASSERT_TRUE(catalog->PutLayout(changed, {naive}).ok());
  catalog = Open();
  ASSERT_EQ(catalog->layouts().size(), 1u);
  EXPECT_EQ(catalog->layouts()[0].descriptor_ids.size(), 3u);
  EXPECT_EQ(catalog->layouts()[0].wish.codec, "naive-int2");
  EXPECT_EQ(catalog->layouts()[0].name, "a");  // a name is kept until another is given
}

TEST_F(CatalogTest, TheSameAgainWritesNothing) {
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  const std::string before = Content(file());
  ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  EXPECT_EQ(Content(file()), before);
}

TEST_F(CatalogTest, EveryTornTailCostsTheLastRecordOnly) {
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  const size_t before = Content(file()).size();
  ASSERT_TRUE(catalog->PutLayout(Sample("b", "x"), Int4Ladder()).ok());
  const std::string whole = Content(file());
  for (size_t size = before; size < whole.size(); ++size) {
    Write(file(), whole.substr(0, size));
    catalog = Open();
    ASSERT_NE(catalog, nullptr);
    ASSERT_EQ(catalog->layouts().size(), 1u) << size;
    EXPECT_EQ(catalog->dropped(), size == before ? 0u : 1u) << size;
  }
  ASSERT_TRUE(catalog->PutLayout(Sample("c", "y"), Int4Ladder()).ok());
  EXPECT_EQ(Open()->layouts().size(), 2u);
}

TEST_F(CatalogTest, EveryFlippedByteCostsOneRecordAtMost) {
  auto catalog = Open();
  const std::vector<std::string> spaces = {"", "x", "y"};
  for (const std::string& space : spaces) {
    ASSERT_TRUE(catalog->PutLayout(Sample("n" + space, space), Int4Ladder()).ok());
  }
  const std::string whole = Content(file());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    Write(file(), bad);
    catalog = Open();
    ASSERT_NE(catalog, nullptr);
    ASSERT_GE(catalog->layouts().size(), 2u) << at;
    EXPECT_LE(catalog->dropped(), 1u) << at;
    for (const CatalogLayout& layout : catalog->layouts()) {
      EXPECT_EQ(layout.wish.codec, "crumb-int4");
      EXPECT_EQ(layout.name.front(), 'n');
    }
  }
}

TEST_F(CatalogTest, ForeignAndNewerFilesAreRefusedAndLeftAlone) {
  Write(file(), std::string(500, 'x'));
  EXPECT_THAT(std::string(Catalog::Open(temp_.path()).status().message()),
              HasSubstr("not a catalog"));
  EXPECT_EQ(Content(file()), std::string(500, 'x'));
  ASSERT_EQ(unlink(file().c_str()), 0);
  ASSERT_EQ(symlink("/etc/hostname", file().c_str()), 0);
  EXPECT_FALSE(Catalog::Open(temp_.path()).ok());
  ASSERT_EQ(unlink(file().c_str()), 0);
  ASSERT_EQ(mkdir(file().c_str(), 0700), 0);
  EXPECT_FALSE(Catalog::Open(temp_.path()).ok());
}

TEST_F(CatalogTest, AnEmptyFileOfACrashIsACatalog) {
  Write(file(), "");
  auto catalog = Open();
  ASSERT_NE(catalog, nullptr);
  EXPECT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  EXPECT_EQ(Open()->layouts().size(), 1u);
}

TEST_F(CatalogTest, GrowthIsRewrittenAway) {
  auto catalog = Open();
  size_t largest = 0;
  for (int i = 0; i < 1000; ++i) {
    CatalogLayout layout = Sample(std::string(4000, 'x') + std::to_string(i));
    ASSERT_TRUE(catalog->PutLayout(layout, Int4Ladder()).ok());
    largest = std::max<size_t>(largest, catalog->facts().bytes);
    if (largest > (1u << 20) && catalog->facts().bytes < 20'000) break;
  }
  EXPECT_LT(catalog->facts().bytes, 1u << 20);
  EXPECT_LT(largest, (1u << 20) + 8192);
  EXPECT_GE(largest, 1u << 20);
  ASSERT_EQ(Open()->layouts().size(), 1u);
}

TEST_F(CatalogTest, AFullDiskLosesNothingAndSaysSo) {
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutLayout(Sample("a"), Int4Ladder()).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit tight = old;
  tight.rlim_cur = Content(file()).size() + 20;  // the next record does not fit
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status full = catalog->PutLayout(Sample("b", "x"), Int4Ladder());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_FALSE(full.ok());
  EXPECT_EQ(catalog->layouts().size(), 1u);
  EXPECT_EQ(Open()->dropped(), 0u);
  ASSERT_TRUE(catalog->PutLayout(Sample("b", "x"), Int4Ladder()).ok());
  EXPECT_EQ(Open()->layouts().size(), 2u);
}

TEST_F(CatalogTest, EvaluationsComeBackAndTheNewestOfASubjectCounts) {
  Evaluation one{.model = "m",
                 .revision = "r",
                 .rotation = Sha256Of(AsBytes("set")),
                 .codec = CodecKind::kCrumbInt2,
                 .perplexity_change = 0.3,
                 .kl = 1.5,
                 .tokens = 7,
                 .date = "2026-01-31",
                 .source = "first"};
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutEvaluation(one).ok());
  Evaluation other = one;
  other.codec = CodecKind::kOscarInt2;
  ASSERT_TRUE(catalog->PutEvaluation(other).ok());
  one.source = "second";
  one.kl = 0.25;
  ASSERT_TRUE(catalog->PutEvaluation(one).ok());
  catalog = Open();
  EXPECT_EQ(catalog->dropped(), 0u);
  ASSERT_EQ(catalog->evaluations().size(), 2u);
  EXPECT_EQ(catalog->evaluations()[0].codec, CodecKind::kOscarInt2);
  EXPECT_EQ(catalog->evaluations()[0].source, "first");
  const Evaluation& kept = catalog->evaluations()[1];
  EXPECT_EQ(kept.source, "second");
  EXPECT_EQ(kept.kl, 0.25);
  EXPECT_EQ(kept.perplexity_change, 0.3);
  EXPECT_EQ(kept.tokens, 7u);
  EXPECT_EQ(kept.rotation, one.rotation);
}

TEST_F(CatalogTest, RotationSetsAreFilesNamedByTheirHash) {
  Identity identity = SmallIdentity();
  identity.model = "../../etc/passwd";
  const auto set = SmallSet(identity, Calibration::kFull);
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutRotation(set).ok());
  const std::string path = temp_ / "rotations/" + RotationFileName(set->hash());
  EXPECT_EQ(RotationFileName(set->hash()).size(), 64u + 4);
  EXPECT_EQ(Content(path), set->Serialize());
  EXPECT_FALSE(std::filesystem::exists(temp_ / "../../etc/passwd.rot"));
  catalog = Open();
  ASSERT_EQ(catalog->rotations().size(), 1u);
  const auto found = catalog->FindRotation(Hex(set->hash()).substr(0, 8));
  ASSERT_TRUE(found.ok());
  const auto loaded = catalog->LoadRotation(found->hash);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->hash(), set->hash());
  EXPECT_EQ((*loaded)->contents().model, identity.model);
}

TEST_F(CatalogTest, DamagedRotationFilesAreRefusedByName) {
  const auto set = SmallSet(SmallIdentity(), Calibration::kFull);
  auto catalog = Open();
  ASSERT_TRUE(catalog->PutRotation(set).ok());
  const std::string path = temp_ / "rotations/" + RotationFileName(set->hash());
  std::string bad = Content(path);
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  Write(path, bad);
  catalog = Open();
  const auto loaded = catalog->LoadRotation(set->hash());
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(path));
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("import the set again"));
  EXPECT_EQ(catalog->dropped(), 1u);
  // Another set's bytes under this name.
  const auto other = SmallSet(SmallIdentity(), Calibration::kFull, "other");
  Write(path, other->Serialize());
  EXPECT_FALSE(Open()->LoadRotation(set->hash()).ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_FALSE(Open()->LoadRotation(set->hash()).ok());
}

TEST_F(CatalogTest, TheNewestSetOfAModelWins) {
  auto catalog = Open();
  const auto first = SmallSet(SmallIdentity(), Calibration::kFull, "first");
  const auto second = SmallSet(SmallIdentity(), Calibration::kFull, "second");
  ASSERT_TRUE(catalog->PutRotation(first).ok());
  ASSERT_TRUE(catalog->PutRotation(second).ok());
  EXPECT_EQ(catalog->NewestRotation("example/small", "r1")->hash, second->hash());
  ASSERT_TRUE(catalog->PutRotation(first).ok());  // imported again
  EXPECT_EQ(Open()->NewestRotation("example/small", "r1")->hash, first->hash());
  EXPECT_EQ(catalog->NewestRotation("example/small", "r2"), nullptr);
}

TEST_F(CatalogTest, HashesAreFoundByUniqueBeginnings) {
  auto catalog = Open();
  std::map<char, int> firsts;
  std::string shared;
  for (int i = 0; i < 17 && shared.empty(); ++i) {  // two of 17 start with one digit
    const auto set = SmallSet(SmallIdentity(), Calibration::kNone, std::to_string(i));
    ASSERT_TRUE(catalog->PutRotation(set).ok());
    if (++firsts[Hex(set->hash())[0]] == 2) shared = Hex(set->hash()).substr(0, 1);
  }
  EXPECT_THAT(std::string(catalog->FindRotation(shared).status().message()), HasSubstr("several"));
  EXPECT_EQ(catalog->FindRotation("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog->FindRotation("../x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog->FindRotation(std::string(65, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog->FindRotation(std::string(64, 'a')).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace crumb
