// Published rotation files and the sample's set, held against hashes that are written down here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gpu/codec/read_file.h"
#include "gpu/codec/rotation_import.h"
#include "gpu/codec/rotation_set.h"
#include "tests/support/npz.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

Bytes View(const std::string& data) {
  return {reinterpret_cast<const uint8_t*>(data.data()), data.size()};
}

std::string FirstHash(const PtRotationFile& file) {
  return Hex(RotationSet::MatrixHash(file.layers.begin()->second.rotation));
}

struct Published {
  const char* path;
  size_t layers;
  uint32_t first, dim;
  const char* sha256;
};
constexpr Published kPublished[] = {
    {"rotations/qwen3-8b_k_rotation_qqt_r_h_pbr.pt", 36, 0, 128,
     "9fc65577e17eb1d277ebe4550ac84a126544461672419e2a8a59ee8a39ba17b4"},
    {"rotations/qwen3-8b_v_rotation_sst_r_h_pbr.pt", 36, 0, 128,
     "98c56e6e144f87f23ff1ea9f6ad08aa66467a783bf2ba740566b0488f1167742"},
    {"rotations/qwen3.5-4b_k_rotation.pt", 8, 3, 256,
     "2bc075096c00a81a88a034b0aeacb0151b1d6d857a9a7aca4759ff10b42877a6"},
    {"rotations/qwen3.5-4b_v_rotation.pt", 8, 3, 256,
     "9d702014e7c3dd7282ab9ed7b947a6e8e32462606940b16efd3c4e833e658f4c"},
};

TEST(PtRotation, PublishedFilesMatchTheirHashes) {
  for (const Published& known : kPublished) {
    SCOPED_TRACE(known.path);
    const auto file = LoadPtRotation(testing::TestDataPath(known.path));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->format_version, 1);
    EXPECT_EQ(file->source_grouping, "layer");
    EXPECT_THAT(file->objective, HasSubstr("_r_h_pbr"));
    ASSERT_EQ(file->layers.size(), known.layers);
    EXPECT_EQ(file->layers.begin()->first, known.first);
    EXPECT_EQ(FirstHash(*file), known.sha256);
    for (const auto& [id, layer] : file->layers) {
      ASSERT_EQ(layer.heads, 1u);
      ASSERT_EQ(layer.dim, known.dim);
      ASSERT_TRUE(std::is_sorted(layer.eigenvalues.begin(), layer.eigenvalues.end()));
      ASSERT_LT(OrthogonalityError(layer.rotation, layer.dim), 1e-6);
    }
  }
}

TEST(PtRotation, PublishedPairsBecomeRotationSets) {
  for (size_t i = 0; i < std::size(kPublished); i += 2) {
    const auto k = LoadPtRotation(testing::TestDataPath(kPublished[i].path));
    const auto v = LoadPtRotation(testing::TestDataPath(kPublished[i + 1].path));
    ASSERT_TRUE(k.ok() && v.ok());
    auto contents = CombinePtFiles(*k, *v, {.model = "Qwen", .revision = "r", .note = "n."});
    ASSERT_TRUE(contents.ok()) << contents.status();
    const auto set = RotationSet::Make(*std::move(contents));
    ASSERT_TRUE(set.ok()) << set.status();
    const auto again = RotationSet::Parse(View((*set)->Serialize()));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->hash(), (*set)->hash());
    const RotationLayer& layer = (*again)->contents().layers.front();
    EXPECT_EQ(Hex(RotationSet::MatrixHash(layer.k.matrix)), kPublished[i].sha256);
    EXPECT_EQ(Hex(RotationSet::MatrixHash(layer.v.matrix)), kPublished[i + 1].sha256);
    EXPECT_FALSE((*again)->calibrated());
    EXPECT_THAT((*again)->contents().provenance, HasSubstr(Hex(k->file_hash)));
    // The files may not be swapped.
    const auto swapped = CombinePtFiles(*v, *k, {.model = "Qwen", .revision = "r"});
    EXPECT_THAT(std::string(swapped.status().message()), HasSubstr("swapped"));
  }
}

// Facts that an independent reader found in the same files.
TEST(PtRotation, AgreesWithTheGoldenFacts) {
  const auto text = ReadWholeFile(testing::TestDataPath("golden/oscar_golden.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json facts = nlohmann::json::parse(*text)["real_files"];
  constexpr std::pair<const char*, int> kSame[] = {{"zoo-vl/k.pt", 0}, {"zoo-q35/k.pt", 2}};
  for (const auto& [name, index] : kSame) {
    const auto file = LoadPtRotation(testing::TestDataPath(kPublished[index].path));
    ASSERT_TRUE(file.ok()) << file.status();
    const nlohmann::json& fact = facts[name];
    EXPECT_EQ(fact["layer0_rotation_fp32_sha256"], FirstHash(*file));
    EXPECT_EQ(fact["objective"], file->objective);
    EXPECT_EQ(fact["layers"], file->layers.size());
    EXPECT_EQ(fact["shape"][1], file->layers.begin()->second.dim);
    const PtLayer& layer = file->layers.begin()->second;
    EXPECT_NEAR(OrthogonalityError(layer.rotation, layer.dim), fact["orth_err_fp32"], 2e-8);
    std::vector<float> narrow = layer.rotation;
    for (float& value : narrow) {
      const auto bits = std::bit_cast<uint32_t>(value);
      value = std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
    }
    EXPECT_NEAR(OrthogonalityError(narrow, layer.dim), fact["orth_err_bf16"], 1e-3);
  }
}

// --- the flat sets made by make_rotation_set.py, which writes the format by its own code ---

TEST(SampleSet, HashesAreFrozen) {
  const auto sample = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(Hex((*sample)->hash()),
            "79169abc74e7858a543d10bb8d164fbe5c261429de378210d011f61ce3ed28f6");
  EXPECT_TRUE((*sample)->calibrated());
  EXPECT_EQ((*sample)->contents().gamma, 1.0f);
  EXPECT_THAT((*sample)->contents().provenance, HasSubstr("of the 512-token sample itself"));
  ASSERT_EQ((*sample)->contents().layers.size(), 3u);
  EXPECT_EQ((*sample)->contents().layers[1].layer_id, 15u);
  const auto full = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_full.rot"));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(Hex((*full)->hash()),
            "d060173afa754734e994341cc3d3c933e5a6cfefb127a119d4c0f35d33632216");
  EXPECT_EQ((*full)->contents().layers.size(), 30u);
  EXPECT_TRUE((*full)->calibrated());
}

TEST(SampleSet, HoldsWhatTheArraysHold) {
  const auto set = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_TRUE(set.ok()) << set.status();
  const testing::NpzFile arrays = testing::NpzFile::OpenTestData("smollm2/smollm2_rotations.npz");
  for (const RotationLayer& layer : (*set)->contents().layers) {
    const auto part = [&](const char* name, size_t size) {
      const auto values = arrays[name].values<float>().subspan(layer.layer_id * size, size);
      return std::vector<float>(values.begin(), values.end());
    };
    EXPECT_EQ(layer.k.matrix, part("k_layer", 64 * 64));
    EXPECT_EQ(layer.v.matrix, part("v_layer", 64 * 64));
    EXPECT_EQ(layer.k_mean, part("k_mean", 3 * 64));
  }
}

// A = R^T M R + 0.03 tr(M)/d I with R in BF16, as the golden pages of the crumb codec hold it.
TEST(SampleSet, MomentsGiveTheGoldenMetric) {
  const auto set = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_TRUE(set.ok()) << set.status();
  const testing::NpzFile golden = testing::NpzFile::OpenTestData("golden/golden_crumb.npz");
  constexpr size_t kDim = 64;
  for (const RotationLayer& layer : (*set)->contents().layers) {
    std::vector<double> r;
    for (const float value : layer.k.matrix) {
      const auto bits = std::bit_cast<uint32_t>(value);
      r.push_back(std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u));
    }
    for (size_t head = 0; head < 3; ++head) {
      const float* m = layer.query_moment.data() + head * kDim * kDim;
      std::vector<double> mr(kDim * kDim), a(kDim * kDim);
      const auto multiply = [&](auto left, std::vector<double>& out, const auto& right) {
        for (size_t i = 0; i < kDim; ++i) {
          for (size_t k = 0; k < kDim; ++k) {
            for (size_t j = 0; j < kDim; ++j) out[i * kDim + j] += left(i, k) * right[k * kDim + j];
          }
        }
      };
      multiply([&](size_t i, size_t k) { return static_cast<double>(m[i * kDim + k]); }, mr, r);
      multiply([&](size_t i, size_t k) { return r[k * kDim + i]; }, a, mr);
      double trace = 0;
      for (size_t i = 0; i < kDim; ++i) trace += a[i * kDim + i];
      for (size_t i = 0; i < kDim; ++i) a[i * kDim + i] += 0.03 * trace / kDim;
      const auto want =
          golden[absl::StrCat("l", layer.layer_id, "_h", head, "_metric")].values<double>();
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], want[i], 1e-6 * trace) << i;
    }
  }
}

}  // namespace
}  // namespace crumb
