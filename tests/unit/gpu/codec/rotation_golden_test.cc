// Published rotation files and the sample's set, held against hashes that are written down here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace crumb
