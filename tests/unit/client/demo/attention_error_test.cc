// The demo's error measure against figures of an independent implementation (attn_sample.json).
#include "client/demo/attention_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "client/demo/sample.h"
#include "tests/support/npz.h"

namespace crumb::demo {
namespace {

const Sample& TheSample() {
  static const Sample sample = *LoadSample(testing::TestDataPath("smollm2"));
  return sample;
}

const AttentionReference& TheReference() {
  static const AttentionReference reference(TheSample());
  return reference;
}

uint16_t Bf16Of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Plain group-affine quantisation of whole rows, without rotation or clip.
void QuantiseRows(std::vector<uint16_t>& values, size_t dim, float levels) {
  for (size_t row = 0; row < values.size(); row += dim) {
    float low = INFINITY, high = -INFINITY;
    for (size_t i = row; i < row + dim; ++i) {
      low = std::min(low, FloatOfBf16(values[i]));
      high = std::max(high, FloatOfBf16(values[i]));
    }
    const float scale = std::max(high - low, 1e-8f) / levels;
    const float zero = -low / scale;
    for (size_t i = row; i < row + dim; ++i) {
      const float code = std::trunc(FloatOfBf16(values[i]) / scale + zero + 0.5f);
      values[i] = Bf16Of((code - zero) * scale);
    }
  }
}

TEST(AttentionError, IsZeroForTheSameBytes) {
  const AttentionError error = TheReference().Compare(TheSample());
  EXPECT_EQ(error.logit, 0.0);
  EXPECT_EQ(error.logit_centred, 0.0);
  EXPECT_EQ(error.output, 0.0);
}

TEST(AttentionError, RowsOutsideTheWindowDoNotCount) {
  Sample restored = TheSample();
  for (SampleLayer& layer : restored.layers) {
    const size_t row = size_t{restored.kv_heads} * restored.dim;
    std::fill_n(layer.k.begin(), kSinkTokens * row, uint16_t{0});
    std::fill_n(layer.v.begin(), kSinkTokens * row, uint16_t{0});
    std::fill(layer.k.begin() + static_cast<ptrdiff_t>(256 * row), layer.k.end(), uint16_t{0});
    std::fill(layer.v.begin() + static_cast<ptrdiff_t>(256 * row), layer.v.end(), uint16_t{0});
  }
  EXPECT_EQ(TheReference().Compare(restored).output, 0.0);
  restored.layers[1].v[(kSinkTokens * restored.kv_heads) * restored.dim] ^= 0x4000;
  EXPECT_GT(TheReference().Compare(restored).output, 0.0);
  EXPECT_EQ(TheReference().Compare(restored).logit, 0.0);
}

TEST(AttentionError, MatchesTheKnownFiguresOfPlainQuantisers) {
  const auto figures = nlohmann::json::parse(testing::ReadTestData("smollm2/attn_sample.json"));
  constexpr std::pair<const char*, float> kCases[] = {{"naive.int2-g64", 3.0f},
                                                      {"naive.int4", 15.0f}};
  for (const auto& [name, levels] : kCases) {
    SCOPED_TRACE(name);
    Sample restored = TheSample();
    for (SampleLayer& layer : restored.layers) {
      QuantiseRows(layer.k, restored.dim, levels);
      QuantiseRows(layer.v, restored.dim, levels);
    }
    const AttentionError error = TheReference().Compare(restored);
    const nlohmann::json& known = figures[name];
    EXPECT_NEAR(error.logit / known["logit_rel"].get<double>(), 1.0, 0.001);
    EXPECT_NEAR(error.logit_centred / known["logit_rel_centred"].get<double>(), 1.0, 0.001);
    EXPECT_NEAR(error.output / known["out_rel"].get<double>(), 1.0, 0.001);
  }
}

TEST(Sample, PagesGoThereAndBack) {
  const Sample& sample = TheSample();
  EXPECT_EQ(sample.page_count(), 8u);
  EXPECT_EQ(sample.page_bytes(), 147456u);
  Sample copy = sample;
  for (SampleLayer& layer : copy.layers) {
    std::fill(layer.k.begin(), layer.k.end(), uint16_t{0});
    std::fill(layer.v.begin(), layer.v.end(), uint16_t{0});
  }
  std::vector<uint8_t> raw(sample.page_bytes());
  for (uint32_t page = 0; page < sample.page_count(); ++page) {
    WritePage(sample, page, absl::MakeSpan(raw));
    ReadPage(raw, page, copy);
  }
  for (size_t i = 0; i < sample.layers.size(); ++i) {
    EXPECT_EQ(copy.layers[i].k, sample.layers[i].k);
    EXPECT_EQ(copy.layers[i].v, sample.layers[i].v);
  }
  // [layer][K|V][head][token][dim]: token 65 of head 2 of V of the second layer.
  WritePage(sample, 1, absl::MakeSpan(raw));
  const size_t row = ((1 * 2 + 1) * 3 + 2) * 64 + 1;
  EXPECT_EQ(std::memcmp(raw.data() + row * 128, sample.layers[1].v.data() + (65 * 3 + 2) * 64, 128),
            0);
}

TEST(Sample, KeysAreHashesOfThePrefix) {
  const std::vector<std::string> keys = PrefixKeys(TheSample());
  ASSERT_EQ(keys.size(), 8u);
  Sample other = TheSample();
  other.token_ids[70] += 1;
  const std::vector<std::string> changed = PrefixKeys(other);
  EXPECT_EQ(changed[0], keys[0]);
  for (size_t i = 1; i < keys.size(); ++i) EXPECT_NE(changed[i], keys[i]);
}

TEST(Sample, MissingFilesAreNamed) {
  const auto sample = LoadSample("/nonexistent");
  EXPECT_TRUE(absl::IsNotFound(sample.status()));
  EXPECT_NE(sample.status().message().find("/nonexistent/smollm2_qkv_sample.npz"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace crumb::demo
