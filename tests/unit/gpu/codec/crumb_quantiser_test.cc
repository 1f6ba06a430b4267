// One row of codec `crumb`: tables, stored metadata, gain, feedback, and the rows without a range.
#include "gpu/codec/crumb_quantiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

double Uniform(Rng* rng) { return static_cast<double>(rng->Below(1u << 24)) / (1u << 23) - 1.0; }

std::vector<float> RandomRow(Rng* rng, size_t dim, double size) {
  std::vector<float> row(dim);
  for (float& value : row) {
    value = RoundToBf16(
        static_cast<float>(size * (Uniform(rng) + Uniform(rng) + Uniform(rng) + Uniform(rng))));
  }
  return row;
}

std::vector<float> Decode(const CrumbGrid& grid, const CrumbRow& row,
                          const std::vector<uint8_t>& codes) {
  float levels[16];
  CrumbLevels(grid, row.s8, row.z8, levels);
  std::vector<float> out;
  for (const uint8_t code : codes) out.push_back(levels[code]);
  return out;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(CrumbTablesTest, ScalesAndZeros) {
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(kCrumbScale[static_cast<size_t>(i)], static_cast<float>(std::exp2((i - 160) / 16.0)));
  }
  const CrumbGrid two = CrumbGridOf(2), three = CrumbGridOf(3), four = CrumbGridOf(4);
  EXPECT_EQ(two.top, 3.0f);
  EXPECT_EQ(two.step, 1.0f / 32);
  EXPECT_EQ(three.mid, 3.5f);
  EXPECT_EQ(three.step, 2.0f / 32);
  EXPECT_EQ(four.top, 15.0f);
  EXPECT_EQ(four.step, 4.0f / 32);
  EXPECT_EQ(CrumbZero(two, 0), -0.5f);
  EXPECT_EQ(CrumbZero(two, 0x80), -0.5f);  // the flag is no part of the zero
  EXPECT_EQ(CrumbZero(two, 64), 1.5f);
  EXPECT_EQ(CrumbZero(four, 127), 7.5f + 63.0f / 8);
}

TEST(CrumbQuantiserTest, GainMakesInnerProductsRight) {
  Rng rng(1);
  std::vector<uint8_t> codes(64);
  CrumbRowWork work;
  for (const uint32_t bits : {2u, 3u, 4u}) {
    CrumbSearch search;
    search.grid = CrumbGridOf(bits);
    search.is_v = true;
    double full = 0.0, kept = 0.0;
    for (int i = 0; i < 50; ++i) {
      const std::vector<float> y = RandomRow(&rng, 64, 1.5);
      const CrumbRow row = QuantiseCrumbRow(search, y, absl::MakeSpan(codes), &work);
      EXPECT_FALSE(row.clamped);
      EXPECT_EQ(row.z8 & kCrumbStaticFlag, 0);
      for (const uint8_t code : codes) ASSERT_LE(code, static_cast<uint8_t>(search.grid.top));
      const std::vector<float> back = Decode(search.grid, row, codes);
      // The scale's grid is a sixteenth of an octave: 2.2 % to each side.
      EXPECT_NEAR(Dot(back, y) / Dot(y, y), 1.0, 0.03);
      full += Dot(y, y);
      kept += Dot(back, y);
      double error = 0.0;
      for (size_t k = 0; k < y.size(); ++k) {
        const double e = double{y[k]} - double{back[k]};
        error += e * e;
      }
      EXPECT_NEAR(row.plain_error, error, 1e-9 * error);
      EXPECT_EQ(row.metric_error, row.plain_error);
    }
    EXPECT_NEAR(kept / full, 1.0, 0.01);
  }
}

TEST(CrumbQuantiserTest, FeedbackAndEffortLowerTheMetricError) {
  constexpr size_t kDim = 32;
  Rng rng(2);
  std::vector<float> moment(kDim * kDim, 0.0f);
  for (int sample = 0; sample < 6; ++sample) {
    const std::vector<float> q = RandomRow(&rng, kDim, 1.0);
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t j = 0; j < kDim; ++j) moment[i * kDim + j] += q[i] * q[j];
    }
  }
  const auto metric = MakeQueryMetric(moment, {}, kDim);
  ASSERT_TRUE(metric.ok());
  std::vector<double> room(TriangleSize(kDim));
  CrumbSearch search;
  search.grid = CrumbGridOf(2);
  search.gamma = 1.0;
  search.metric = ExpandMetric(*metric, absl::MakeSpan(room));
  CrumbRowWork work;
  std::vector<uint8_t> codes(kDim);
  double draft = 0.0, normal = 0.0, best = 0.0;
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> y = RandomRow(&rng, kDim, 1.0);
    search.effort = Effort::kDraft;
    draft += QuantiseCrumbRow(search, y, absl::MakeSpan(codes), &work).metric_error;
    search.effort = Effort::kNormal;
    normal += QuantiseCrumbRow(search, y, absl::MakeSpan(codes), &work).metric_error;
    search.effort = Effort::kBest;
    best += QuantiseCrumbRow(search, y, absl::MakeSpan(codes), &work).metric_error;
  }
  EXPECT_LT(normal, 0.5 * draft);
  EXPECT_LT(best, normal);
}

TEST(CrumbQuantiserTest, RowsWithoutRange) {
  CrumbRowWork work;
  std::vector<uint8_t> codes(64);
  for (const uint32_t bits : {2u, 3u, 4u}) {
    for (const bool is_v : {false, true}) {
      for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
        CrumbSearch search;
        search.grid = CrumbGridOf(bits);
        search.is_v = is_v;
        search.effort = effort;
        for (const float c : {0.0f, -0.0f, 1.0f, -1.0f, 20.0f, -0.25f}) {
          SCOPED_TRACE(c);
          const CrumbRow row =
              QuantiseCrumbRow(search, std::vector<float>(64, c), absl::MakeSpan(codes), &work);
          EXPECT_FALSE(row.clamped);
          for (const float value : Decode(search.grid, row, codes)) {
            EXPECT_NEAR(value, c, std::abs(c) * 0.03f);
          }
        }
      }
    }
  }
}

TEST(CrumbQuantiserTest, SaysWhenItClamps) {
  CrumbRowWork work;
  std::vector<uint8_t> codes(4);
  CrumbSearch search;
  search.grid = CrumbGridOf(2);
  search.is_v = true;
  const auto clamped = [&](std::vector<float> y) {
    return QuantiseCrumbRow(search, y, absl::MakeSpan(codes), &work).clamped;
  };
  EXPECT_FALSE(clamped({-1, 0.5f, 1, 2}));
  EXPECT_TRUE(clamped({-1e4f, 5, 1, 2e4f}));             // scale past 61
  EXPECT_TRUE(clamped({-1e-6f, 0, 1e-6f, 2e-6f}));       // scale below 2^-10
  EXPECT_TRUE(clamped({100, 101, 100.5f, 101}));         // zero far from the middle
  EXPECT_TRUE(clamped({-3e38f, 3e38f, 1, 2}));           // range past FP32
  EXPECT_TRUE(clamped({1e-40f, 2e-40f, 0.0f, 1e-40f}));  // subnormals
}

TEST(CrumbQuantiserTest, PageMean) {
  std::vector<int8_t> p8(4);
  const std::vector<double> mean = {0.0, 1.27, -1.27, 0.635};
  const uint16_t sigma = QuantisePageMean(mean, absl::MakeSpan(p8));
  EXPECT_NEAR(Bf16ToFloat(sigma), 0.01, 0.00004);
  EXPECT_EQ(p8[0], 0);
  EXPECT_NEAR(p8[1], 127, 1);
  EXPECT_EQ(p8[1], -p8[2]);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(PageMeanElement(p8[i], sigma), mean[i], 0.0106);

  const std::vector<double> none(4, 0.0), huge(4, -3.3e38), tiny(4, 1e-44);
  EXPECT_EQ(QuantisePageMean(none, absl::MakeSpan(p8)), 0);
  EXPECT_EQ(p8, std::vector<int8_t>(4, 0));
  const uint16_t large = QuantisePageMean(huge, absl::MakeSpan(p8));
  EXPECT_EQ(p8, std::vector<int8_t>(4, -127));
  EXPECT_NEAR(double{PageMeanElement(-127, large)}, -3.3e38, 3e36);
  QuantisePageMean(tiny, absl::MakeSpan(p8));  // sigma rounds to zero: p must not be 0 / 0
  EXPECT_EQ(p8, std::vector<int8_t>(4, 0));
}

}  // namespace
}  // namespace crumb
