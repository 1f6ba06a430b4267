// Mutations of rotation files with fixed seeds: truncations everywhere, flipped bytes, swapped
// opcodes, edited sizes. PROMISE under test: no input crashes, hangs or yields a result that
// breaks the parsers' promises. Meant to run under ASan and UBSan too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/pickle.h"
#include "gpu/codec/read_file.h"
#include "gpu/codec/rotation_import.h"
#include "gpu/codec/rotation_set.h"
#include "tests/support/npz.h"
#include "tests/unit/gpu/codec/pt_builder.h"

namespace crumb {
namespace {

using testing::MakePt;
using testing::MakePtEntries;
using testing::MakeZip;
using testing::PtSpec;
using testing::View;
using testing::ZipEntries;
using testing::ZipMethod;

// What happened to all cases of one test.
struct Tally {
  int accepted = 0;
  int refused = 0;
  std::set<std::string> reasons;  // without digits, so that figures do not make reasons differ
};

std::string WithoutDigits(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

void Count(const absl::Status& status, Tally& tally) {
  if (status.ok()) {
    ++tally.accepted;
    return;
  }
  ++tally.refused;
  EXPECT_FALSE(status.message().empty());
  tally.reasons.insert(WithoutDigits(std::string(status.message())));
}

void CheckResult(const PtRotationFile& file) {
  ASSERT_FALSE(file.layers.empty());
  for (const auto& [id, layer] : file.layers) {
    ASSERT_EQ(layer.rotation.size(), size_t{layer.heads} * layer.dim * layer.dim);
    ASSERT_EQ(layer.k_mean.size(), size_t{layer.mean_heads} * layer.dim);
    const auto first = absl::MakeConstSpan(layer.rotation).first(size_t{layer.dim} * layer.dim);
    ASSERT_LE(OrthogonalityError(first, layer.dim), kOrthogonalityMax);
  }
}

void TryPt(const std::string& file, Tally& tally) {
  const auto parsed = ParsePtRotation(View(file), "fuzz.pt");
  Count(parsed.status(), tally);
  if (parsed.ok()) CheckResult(*parsed);
}

std::vector<PtSpec> Seeds() {
  return {{.layer_ids = {0, 1}},
          {.format_version = 2, .heads = 2, .layer_ids = {3, 4, 300}},
          {.format_version = 3, .dim = 4, .text_keys = true, .k_mean = true, .companions = true}};
}

// One to four edits: replace, insert, remove or copy bytes.
std::string Mutate(std::string data, Rng& rng) {
  const uint64_t edits = 1 + rng.Below(4);
  for (uint64_t i = 0; i < edits && !data.empty(); ++i) {
    const size_t at = rng.Below(data.size());
    switch (rng.Below(5)) {
      case 0:
        data[at] = static_cast<char>(rng.Below(256));
        break;
      case 1:
        data[at] = static_cast<char>(data[at] ^ (1 << rng.Below(8)));
        break;
      case 2:
        data.insert(at, 1 + rng.Below(3), static_cast<char>(rng.Below(256)));
        break;
      case 3:
        data.erase(at, 1 + rng.Below(4));
        break;
      default:
        data.replace(at, 1, data, rng.Below(data.size()), 1 + rng.Below(16));
        break;
    }
  }
  return data;
}

// One to three edits that keep the length, so that a zip's offsets still fit.
std::string Flip(std::string data, Rng& rng) {
  const uint64_t edits = 1 + rng.Below(3);
  for (uint64_t i = 0; i < edits; ++i) {
    char& byte = data[rng.Below(data.size())];
    byte = static_cast<char>(rng.Chance(1, 2) ? rng.Below(256) : byte ^ (1u << rng.Below(8)));
  }
  return data;
}

TEST(RotationFuzz, TruncatedAnywhere) {
  Tally tally;
  for (const PtSpec& spec : Seeds()) {
    const std::string file = MakePt(spec);
    for (size_t size = 0; size < file.size(); ++size) TryPt(file.substr(0, size), tally);
    TryPt(file, tally);
  }
  // Nothing but the whole file is accepted.
  EXPECT_EQ(tally.accepted, static_cast<int>(Seeds().size()));
  EXPECT_GT(tally.refused, 3000);
}

TEST(RotationFuzz, FlippedBytesOfTheZip) {
  Rng rng(1);
  Tally tally;
  for (const PtSpec& spec : Seeds()) {
    for (const ZipMethod method : {ZipMethod::kStored, ZipMethod::kDeflated}) {
      const std::string file = MakeZip(MakePtEntries(spec), method);
      for (int i = 0; i < 300; ++i) TryPt(Mutate(file, rng), tally);
      for (int i = 0; i < 700; ++i) TryPt(Flip(file, rng), tally);
    }
  }
  EXPECT_EQ(tally.accepted + tally.refused, 6000);
  EXPECT_GT(tally.reasons.size(), 10u);
}

TEST(RotationFuzz, MutatedPicklesInSoundZips) {
  Rng rng(2);
  Tally tally;
  for (const PtSpec& spec : Seeds()) {
    ZipEntries entries = MakePtEntries(spec);
    const std::string pickle = entries[0].second;
    for (int i = 0; i < 1500; ++i) {
      entries[0].second = Mutate(pickle, rng);
      TryPt(MakeZip(entries), tally);
    }
    for (size_t size = 0; size < pickle.size(); ++size) {
      entries[0].second = pickle.substr(0, size);
      TryPt(MakeZip(entries), tally);
    }
  }
  EXPECT_GT(tally.accepted, 0);  // some edits only rename an objective
  EXPECT_GT(tally.reasons.size(), 50u);
}

TEST(RotationFuzz, OpcodesSwapped) {
  // Every byte of a pickle becomes every opcode that the reader knows, and some that it does not.
  static constexpr std::string_view kCodes =
      "\x80.(N\x88\x89JKM\x8aGX\x8c)]}t\x85\x86\x87"
      "aesuqrhjcRQ2bo\x81\x93\x95\xff";
  Tally tally;
  const std::string pickle = MakePtEntries({.layer_ids = {0, 1}})[0].second;
  for (size_t at = 0; at < pickle.size(); ++at) {
    for (const char code : kCodes) {
      std::string edited = pickle;
      edited[at] = code;
      const auto parsed = ParsePickle(View(edited));
      Count(parsed.status(), tally);
      if (!parsed.ok()) continue;
      ASSERT_LT(parsed->root, parsed->values.size());
      for (const PickleValue& value : parsed->values) {
        for (const PickleHandle handle : value.items) ASSERT_LT(handle, parsed->values.size());
      }
    }
  }
  EXPECT_GT(tally.refused, 10000);
  EXPECT_GT(tally.reasons.size(), 40u);
}

TEST(RotationFuzz, PublishedFileCutAtEveryEntry) {
  const auto file =
      ReadWholeFile(testing::TestDataPath("rotations/qwen3.5-4b_v_rotation.pt"), kPtFileBytesMax);
  ASSERT_TRUE(file.ok()) << file.status();
  Tally tally;
  for (size_t at = file->find("PK"); at != std::string::npos; at = file->find("PK", at + 1)) {
    for (const size_t size : {at, at + 1, at + 4, at + 30}) {
      if (size < file->size()) TryPt(file->substr(0, size), tally);
    }
  }
  EXPECT_EQ(tally.accepted, 0);
  EXPECT_GT(tally.refused, 100);
}

// The flat format, with and without a trailer that fits.
TEST(RotationFuzz, FlatFiles) {
  auto contents = CombinePtFiles(
      *ParsePtRotation(View(MakePt({.format_version = 3, .k_mean = true})), "k.pt"),
      *ParsePtRotation(View(MakePt({.objective = "sst_r_h_pbr", .heads = 2})), "v.pt"),
      {.model = "m", .revision = "r"});
  ASSERT_TRUE(contents.ok()) << contents.status();
  const auto made = RotationSet::Make(*std::move(contents));
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string file = (*made)->Serialize();
  const size_t sealed = file.size() - sizeof(Sha256);
  // Most edits go where lengths and shapes are.
  const size_t head = file.find('\0', file.find("feedback")) + 10 * 64;
  Rng rng(3);
  Tally tally;
  for (int i = 0; i < 4000; ++i) {
    std::string edited = file.substr(0, sealed);
    const size_t reach = rng.Chance(7, 8) ? head : sealed;
    edited.replace(0, reach, Mutate(edited.substr(0, reach), rng));
    if (rng.Chance(1, 2)) edited.replace(8, 8, std::string_view(file).substr(8, 8));
    if (rng.Chance(15, 16)) {
      const Sha256 hash = Sha256Of(AsBytes(edited));
      edited.append(reinterpret_cast<const char*>(hash.data()), hash.size());
    } else {
      edited.append(file, sealed);
    }
    const auto parsed = RotationSet::Parse(AsBytes(edited));
    Count(parsed.status(), tally);
    if (!parsed.ok()) continue;
    ASSERT_EQ((*parsed)->Serialize(), edited);  // one form only
  }
  EXPECT_GT(tally.accepted, 0);
  EXPECT_GT(tally.reasons.size(), 15u);
}

}  // namespace
}  // namespace crumb
