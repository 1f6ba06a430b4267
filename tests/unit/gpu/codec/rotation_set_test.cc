// RotationSet: what Make accepts and refuses, the flat file there and back, and damaged files.
#include "gpu/codec/rotation_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cachesvc/base/bytes.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

// Two layers of different kinds: shared K with statistics, and per-head V alone.
RotationSet::Contents Sample() {
  RotationSet::Contents contents;
  contents.model = "test/model";
  contents.revision = "r1";
  contents.objective = "qqt_r_h_pbr / sst_r_h_pbr";
  contents.provenance = "made by hand";
  contents.gamma = 1.0f;
  RotationLayer first;
  first.layer_id = 3;
  first.k = {1, 8, HadamardMatrix(8)};
  first.v = {1, 16, HadamardMatrix(16)};
  first.kv_heads = 2;
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t i = 0; i < 8; ++i) {
      for (uint32_t j = 0; j < 8; ++j) {
        first.query_moment.push_back(i == j ? 1.0f + static_cast<float>(i + head) : 0.25f);
      }
      first.k_mean.push_back(0.125f * static_cast<float>(i));
    }
  }
  RotationLayer second;
  second.layer_id = 7;
  second.v = {2, 8, HadamardMatrix(8)};
  const std::vector<float> again = HadamardMatrix(8);
  second.v.matrix.insert(second.v.matrix.end(), again.begin(), again.end());
  contents.layers = {first, second};
  return contents;
}

std::string ErrorOf(RotationSet::Contents contents) {
  const auto set = RotationSet::Make(std::move(contents));
  return set.ok() ? "" : std::string(set.status().message());
}

std::string ParseError(const std::string& file) {
  const auto set = RotationSet::Parse(AsBytes(file));
  return set.ok() ? "" : std::string(set.status().message());
}

// Makes the trailer fit again, as somebody would who edits a file on purpose.
std::string Reseal(std::string file) {
  const Sha256 hash = Sha256Of(AsBytes(file).first(file.size() - sizeof(Sha256)));
  file.replace(file.size() - hash.size(), hash.size(), reinterpret_cast<const char*>(hash.data()),
               hash.size());
  return file;
}

template <typename T>
std::string Patch(std::string file, size_t offset, T value) {
  std::memcpy(file.data() + offset, &value, sizeof(value));
  return Reseal(std::move(file));
}

TEST(RotationSet, GoesThroughTheFlatFileUnchanged) {
  const auto set = RotationSet::Make(Sample());
  ASSERT_TRUE(set.ok()) << set.status();
  const std::string file = (*set)->Serialize();
  const auto again = RotationSet::Parse(AsBytes(file));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->hash(), (*set)->hash());
  EXPECT_EQ((*again)->Serialize(), file);
  const RotationSet::Contents& contents = (*again)->contents();
  EXPECT_EQ(contents.model, "test/model");
  EXPECT_EQ(contents.provenance, "made by hand");
  EXPECT_EQ(contents.gamma, 1.0f);
  ASSERT_EQ(contents.layers.size(), 2u);
  EXPECT_EQ(contents.layers[0].k.matrix, Sample().layers[0].k.matrix);
  EXPECT_EQ(contents.layers[0].query_moment, Sample().layers[0].query_moment);
  EXPECT_EQ(contents.layers[0].k_mean, Sample().layers[0].k_mean);
  EXPECT_EQ(contents.layers[0].k_dim, 8u);
  EXPECT_EQ(contents.layers[1].v.heads, 2u);
  EXPECT_EQ(contents.layers[1].k.heads, 0u);
}

TEST(RotationSet, HashNamesTheContents) {
  const auto set = RotationSet::Make(Sample());
  RotationSet::Contents other = Sample();
  other.gamma = 0.5f;
  const auto changed = RotationSet::Make(other);
  ASSERT_TRUE(set.ok() && changed.ok());
  EXPECT_NE((*set)->hash(), (*changed)->hash());
  const std::string file = (*set)->Serialize();
  EXPECT_EQ((*set)->hash(), Sha256Of(AsBytes(file).first(file.size() - 32)));
}

TEST(RotationSet, FindsLayersById) {
  const auto set = RotationSet::Make(Sample());
  ASSERT_TRUE(set.ok());
  ASSERT_NE((*set)->FindLayer(7), nullptr);
  EXPECT_EQ((*set)->FindLayer(7)->layer_id, 7u);
  EXPECT_EQ((*set)->FindLayer(4), nullptr);
  EXPECT_EQ((*set)->FindLayer(8), nullptr);
}

TEST(RotationSet, CalibratedMeansEveryLayerHasStatistics) {
  RotationSet::Contents contents = Sample();
  EXPECT_FALSE((*RotationSet::Make(contents))->calibrated());
  contents.layers.pop_back();
  EXPECT_TRUE((*RotationSet::Make(contents))->calibrated());
  contents.layers[0].k_mean.clear();
  EXPECT_FALSE((*RotationSet::Make(contents))->calibrated());
}

TEST(RotationSet, RefusesWhatIsNotOrthogonalNamingLayerAndFigure) {
  RotationSet::Contents contents = Sample();
  contents.layers[1].v.matrix[64 + 3] += 0.5f;
  const std::string error = ErrorOf(contents);
  EXPECT_THAT(error, HasSubstr("layer 7 R_V"));
  EXPECT_THAT(error, HasSubstr("head 1 is not orthogonal"));
  contents = Sample();
  contents.layers[0].k.matrix[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(ErrorOf(contents), HasSubstr("layer 3 R_K: head 0 is not orthogonal"));
  // Within the tolerance: what a BF16 copy of a rotation would show.
  contents = Sample();
  contents.layers[0].k.matrix[5] += 1e-3f;
  EXPECT_EQ(ErrorOf(contents), "");
}

TEST(RotationSet, RefusesStatisticsThatNoQueriesCouldGive) {
  RotationSet::Contents contents = Sample();
  contents.layers[0].query_moment[1] += 0.5f;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("not symmetric: element 1,0"));
  contents = Sample();
  contents.layers[0].query_moment[64 + 9] = -4.0f;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("head 1: the query moment is not positive"));
  contents = Sample();
  for (float& value : contents.layers[0].query_moment) value = 0.0f;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("not positive semi-definite"));
  contents = Sample();
  contents.layers[0].query_moment[0] = INFINITY;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("NaN or Inf in the query moment"));
  contents = Sample();
  contents.layers[0].k_mean[3] = NAN;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("NaN or Inf in the mean"));
}

TEST(RotationSet, RefusesShapesThatDoNotFit) {
  RotationSet::Contents contents = Sample();
  contents.layers[0].k.matrix.pop_back();
  EXPECT_THAT(ErrorOf(contents), HasSubstr("63 elements instead of 64"));
  contents = Sample();
  contents.layers[0].k_mean.pop_back();
  EXPECT_THAT(ErrorOf(contents), HasSubstr("15 elements of the mean instead of 16"));
  contents = Sample();
  contents.layers[0].query_moment.resize(64);
  EXPECT_THAT(ErrorOf(contents), HasSubstr("64 elements of the query moment instead of 128"));
  contents = Sample();
  contents.layers[0].k_dim = 16;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("dimension 16 beside a rotation of dimension 8"));
  contents = Sample();
  contents.layers[0].kv_heads = 0;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("0 kv heads"));
  contents = Sample();
  contents.layers[1].v.dim = 6;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("a multiple of 4"));
  contents = Sample();
  contents.layers[1].v = {};
  EXPECT_THAT(ErrorOf(contents), HasSubstr("layer 7 holds nothing"));
}

TEST(RotationSet, RefusesWrongHeads) {
  RotationSet::Contents contents = Sample();
  std::swap(contents.layers[0], contents.layers[1]);
  EXPECT_THAT(ErrorOf(contents), HasSubstr("not strictly ascending at 3"));
  contents = Sample();
  contents.layers.clear();
  EXPECT_THAT(ErrorOf(contents), HasSubstr("0 layers"));
  contents = Sample();
  contents.gamma = 1.5f;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("gamma is 1.5"));
  contents = Sample();
  contents.gamma = NAN;
  EXPECT_THAT(ErrorOf(contents), HasSubstr("gamma"));
  contents = Sample();
  contents.model.clear();
  EXPECT_THAT(ErrorOf(contents), HasSubstr("model and revision must be named"));
  contents = Sample();
  contents.provenance.assign(kRotationProvenanceBytesMax + 1, 'x');
  EXPECT_THAT(ErrorOf(contents), HasSubstr("provenance has 16385 bytes"));
  contents = Sample();
  contents.revision = "r1\x1b[2J";
  EXPECT_THAT(ErrorOf(contents), HasSubstr("revision holds a control character"));
}

TEST(RotationFile, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::string file = (*RotationSet::Make(Sample()))->Serialize();
  for (size_t size = 0; size < file.size(); ++size) {
    ASSERT_NE(ParseError(file.substr(0, size)), "") << size;
  }
  EXPECT_THAT(ParseError(file + '\0'), HasSubstr("truncated or lengthened"));
  for (size_t i = 0; i < file.size(); ++i) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    ASSERT_NE(ParseError(damaged), "") << i;
  }
}

TEST(RotationFile, EditedAndResealedFilesAreRefusedByName) {
  const std::string file = (*RotationSet::Make(Sample()))->Serialize();
  const size_t table = 64 + 128;  // header, strings padded to 64
  ASSERT_EQ(ParseError(Reseal(file)), "");
  EXPECT_THAT(ParseError(Patch(file, 0, uint32_t{0x04034b50})), HasSubstr("rotation import"));
  EXPECT_THAT(ParseError(Patch(file, 4, uint16_t{2})), HasSubstr("format version 2"));
  EXPECT_THAT(ParseError(Patch(file, 6, uint16_t{1})), HasSubstr("reserved"));
  EXPECT_THAT(ParseError(Patch(file, 16, uint64_t{0})), HasSubstr("outside the file"));
  EXPECT_THAT(ParseError(Patch(file, 16, ~uint64_t{0})), HasSubstr("outside the file"));
  EXPECT_THAT(ParseError(Patch(file, 24, uint32_t{0xffffffff})), HasSubstr("out of range"));
  EXPECT_THAT(ParseError(Patch(file, 28, uint32_t{4})), HasSubstr("4 layers announced, 2 present"));
  EXPECT_THAT(ParseError(Patch(file, 64, uint32_t{0xfffffff0})), HasSubstr("longer than it may"));
  EXPECT_THAT(ParseError(Patch(file, 64, uint32_t{9})), HasSubstr("longer than it may"));
  EXPECT_THAT(ParseError(Patch(file, table + 4, uint16_t{9})), HasSubstr("unknown section kind 9"));
  EXPECT_THAT(ParseError(Patch(file, table + 8, uint32_t{0})), HasSubstr("out of range"));
  EXPECT_THAT(ParseError(Patch(file, table + 8, uint32_t{1024})), HasSubstr("do not lie where"));
  EXPECT_THAT(ParseError(Patch(file, table + 12, uint32_t{9})), HasSubstr("shape 1 x 9 x 8"));
  EXPECT_THAT(ParseError(Patch(file, table + 24, uint64_t{0})), HasSubstr("do not lie where"));
  EXPECT_THAT(ParseError(Patch(file, table + 32, uint64_t{0})), HasSubstr("match their SHA-256"));
  EXPECT_THAT(ParseError(Patch(file, table + 64, uint32_t{2})), HasSubstr("out of order"));
}

TEST(RotationFile, BytesInPaddingAreRefused) {
  const std::string file = (*RotationSet::Make(Sample()))->Serialize();
  // The strings end before their padding does.
  EXPECT_THAT(ParseError(Patch(file, 64 + 127, uint8_t{1})), HasSubstr("padding is not zero"));
}

TEST(RotationFile, LoadNamesThePath) {
  const auto missing = RotationSet::Load("/nonexistent/set.rot");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/set.rot"));
  const auto folder = RotationSet::Load("/");
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("not a regular file"));
}

TEST(RotationMath, HadamardIsSymmetricAndOrthogonal) {
  for (const uint32_t dim : {4u, 8u, 64u, 128u, 256u}) {
    const std::vector<float> h = HadamardMatrix(dim);
    EXPECT_LT(OrthogonalityError(h, dim), 1e-6);
    for (uint32_t i = 0; i < dim; ++i) {
      for (uint32_t j = 0; j < i; ++j) ASSERT_EQ(h[i * dim + j], h[j * dim + i]);
    }
  }
  EXPECT_EQ(HadamardMatrix(4),
            (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, 0.5f, -0.5f, 0.5f, -0.5f, 0.5f, 0.5f, -0.5f,
                                -0.5f, 0.5f, -0.5f, -0.5f, 0.5f}));
}

TEST(RotationMath, BitReversalTables) {
  EXPECT_EQ(BitReversal(8), (std::vector<uint32_t>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(BitReversalPermutation(8), (std::vector<uint32_t>{7, 3, 5, 1, 6, 2, 4, 0}));
  EXPECT_EQ(BitReversal(1), (std::vector<uint32_t>{0}));
  const std::vector<uint32_t> big = BitReversal(128);
  EXPECT_EQ(big[1], 64u);
  EXPECT_EQ(big[5], 80u);
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(big[big[i]], i);
}

}  // namespace
}  // namespace crumb
