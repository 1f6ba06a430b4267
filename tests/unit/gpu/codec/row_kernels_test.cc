// The small parts of the codecs: BF16 rounding, packing, rotation, clip and affine quantiser, the
// query metric.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/pack.h"
#include "gpu/codec/quantise_affine.h"
#include "gpu/codec/query_metric.h"
#include "gpu/codec/rotate.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {
namespace {

// Uniform in [-1, 1).
double Uniform(Rng* rng) { return static_cast<double>(rng->Below(1u << 24)) / (1u << 23) - 1.0; }

std::vector<float> RandomRow(Rng* rng, size_t dim) {
  std::vector<float> row(dim);
  for (float& value : row) {
    value = RoundToBf16(static_cast<float>(Uniform(rng) + Uniform(rng) + Uniform(rng)));
  }
  return row;
}

TEST(Bf16Test, EveryBf16IsItself) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const bool finite = (b & 0x7f80) != 0x7f80;
    if (finite) {
      EXPECT_EQ(FloatToBf16(Bf16ToFloat(b)), b);
    }
  }
}

TEST(Bf16Test, RoundsToNearestTiesToEven) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const auto word = static_cast<uint32_t>(rng.Next());
    const float value = std::bit_cast<float>(word & 0xbf7fffffu);  // finite, below 2^127
    const double x = double{value};
    const float rounded = RoundToBf16(value);
    const auto bits = FloatToBf16(value);
    if ((bits & 0x7fff) == 0) continue;  // its neighbours wrap
    // Both neighbours are no nearer; an exact half keeps the even one.
    for (const int step : {-1, 1}) {
      const auto next = Bf16ToFloat(static_cast<uint16_t>(bits + step));
      const double mine = std::abs(x - double{rounded});
      const double other = std::abs(x - double{next});
      EXPECT_LE(mine, other);
      if (mine == other) {
        EXPECT_EQ(bits & 1, 0);
      }
    }
  }
}

TEST(Bf16Test, SaturatesAndKeepsNan) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatToBf16(inf), kBf16MaxBits);
  EXPECT_EQ(FloatToBf16(-inf), kBf16MaxBits | 0x8000);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), kBf16MaxBits);
  EXPECT_TRUE(std::isnan(RoundToBf16(std::nanf(""))));
  EXPECT_EQ(DoubleToFloat(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(RoundSumToBf16(-1e300), Bf16ToFloat(kBf16MaxBits | 0x8000));
}

TEST(PackTest, PlacesOfBits) {
  std::vector<uint8_t> codes(16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  const auto pack = [&](uint32_t bits, Packing packing, uint8_t mask) {
    std::vector<uint8_t> masked = codes;
    for (uint8_t& code : masked) code &= mask;
    const PackForm form{16, bits, packing};
    std::vector<uint8_t> bytes(PackedRowBytes(form));
    PackRow(form, masked, absl::MakeSpan(bytes));
    return bytes;
  };
  using Row = std::vector<uint8_t>;
  EXPECT_EQ(pack(2, Packing::kPlanar, 3), (Row{0x00, 0x55, 0xaa, 0xff}));
  EXPECT_EQ(pack(2, Packing::kInterleaved, 3), (Row{0xe4, 0xe4, 0xe4, 0xe4}));
  EXPECT_EQ(pack(3, Packing::kPlanar, 7), (Row{0x00, 0x55, 0xaa, 0xff, 0xf0, 0xf0}));
  EXPECT_EQ(pack(4, Packing::kPlanar, 15), (Row{0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7}));
  EXPECT_EQ(pack(4, Packing::kInterleaved, 15),
            (Row{0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}));
}

TEST(PackTest, RoundTripsEveryForm) {
  Rng rng(2);
  for (const uint32_t dim : {4u, 12u, 64u, 80u, 100u, 128u, 256u}) {
    for (const uint32_t bits : {2u, 3u, 4u}) {
      for (const Packing packing : {Packing::kPlanar, Packing::kInterleaved}) {
        if (bits == 3 && packing == Packing::kInterleaved) continue;
        const PackForm form{dim, bits, packing};
        std::vector<uint8_t> codes(dim), back(dim), bytes(PackedRowBytes(form), 0xff);
        for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.Below(1u << bits));
        PackRow(form, codes, absl::MakeSpan(bytes));
        UnpackRow(form, bytes, absl::MakeSpan(back));
        EXPECT_EQ(back, codes) << dim << " " << bits;
        // Unused bits of the 3-bit plane are zero.
        if (bits == 3 && dim % 8 != 0) {
          EXPECT_EQ(bytes.back() >> (dim % 8), 0);
        }
      }
    }
  }
}

TEST(RotateTest, MatchesThePlainProduct) {
  Rng rng(3);
  for (const size_t dim : {4u, 8u, 64u, 80u}) {
    for (const size_t rows : {1u, 3u, 4u, 9u}) {
      const std::vector<float> m = RandomRow(&rng, dim * dim);
      std::vector<float> x = RandomRow(&rng, rows * dim);
      std::vector<double> expanded(dim * dim), work(MultiplyWork(dim));
      for (const RotateDirection direction :
           {RotateDirection::kForward, RotateDirection::kInverse}) {
        ExpandMatrix(m, dim, direction, absl::MakeSpan(expanded));
        std::vector<float> y(x.size()), in_place = x;
        EXPECT_TRUE(MultiplyRows(x, expanded, dim, absl::MakeSpan(y), absl::MakeSpan(work)));
        EXPECT_TRUE(
            MultiplyRows(in_place, expanded, dim, absl::MakeSpan(in_place), absl::MakeSpan(work)));
        EXPECT_EQ(y, in_place);
        for (size_t r = 0; r < rows; ++r) {
          for (size_t j = 0; j < dim; ++j) {
            double sum = 0.0;
            for (size_t i = 0; i < dim; ++i) {
              const float element =
                  direction == RotateDirection::kForward ? m[i * dim + j] : m[j * dim + i];
              sum += double{x[r * dim + i]} * double{RoundToBf16(element)};
            }
            EXPECT_EQ(y[r * dim + j], RoundToBf16(static_cast<float>(sum)));
          }
        }
      }
    }
  }
}

TEST(RotateTest, SaysWhatDoesNotFit) {
  const std::vector<float> h = HadamardMatrix(4);
  std::vector<double> expanded(16), work(MultiplyWork(4));
  ExpandMatrix(h, 4, RotateDirection::kForward, absl::MakeSpan(expanded));
  const std::vector<float> x(4, Bf16ToFloat(kBf16MaxBits));
  std::vector<float> y(4);
  EXPECT_FALSE(MultiplyRows(x, expanded, 4, absl::MakeSpan(y), absl::MakeSpan(work)));
  EXPECT_EQ(y[0], Bf16ToFloat(kBf16MaxBits));
  EXPECT_EQ(y[1], 0.0f);
}

TEST(ClipTest, PublishedRanks) {
  EXPECT_EQ(ClipIndex(0.96f, 128), 122);
  EXPECT_EQ(ClipIndex(0.92f, 128), 117);
  EXPECT_EQ(ClipIndex(0.96f, 64), 61);
  EXPECT_EQ(ClipIndex(0.92f, 64), 58);
  EXPECT_EQ(ClipIndex(0.96f, 256), 245);
  EXPECT_EQ(ClipIndex(0.92f, 256), 235);
  EXPECT_EQ(ClipIndex(1.0f, 128), 127);
  EXPECT_EQ(ClipIndex(0.0f, 128), -1);
  // 0.9 as FP32 is a little less than 0.9: the decimal counts.
  EXPECT_EQ(ClipIndex(0.9f, 20), 18);
  EXPECT_EQ(ClipIndex(0.01f, 4), 0);
}

TEST(ClipTest, HugeRowsDoNotOverflowTheBisection) {
  const float huge = Bf16ToFloat(kBf16MaxBits);
  const std::vector<float> row(64, -huge);
  std::vector<float> work(64);
  const float bound = ClipThreshold({ClipMethod::kBisect, 0.96f}, row, absl::MakeSpan(work));
  EXPECT_TRUE(std::isfinite(bound));
  EXPECT_GT(bound, huge / 2);
}

// Every group a test can think of: finite pair, codes in range, error at most half a step and
// rounding.
TEST(AffineTest, AnyFiniteGroup) {
  const float huge = Bf16ToFloat(kBf16MaxBits);
  std::vector<std::vector<float>> groups;
  for (const float c : {0.0f, -0.0f, 1.0f, -1.0f, 65504.0f, -65504.0f, 6e-8f, 1e-30f, 3e38f, -3e38f,
                        huge, -huge, 1e-40f}) {
    const float value = RoundToBf16(c);
    groups.emplace_back(32, value);
    groups.emplace_back(64, value);
    groups.back()[7] = Bf16ToFloat(static_cast<uint16_t>(FloatToBf16(value) ^ 1));
    groups.emplace_back(64, value);
    groups.back()[63] = -value;
  }
  groups.emplace_back(128, 1e-3f);
  groups.back()[100] = 6e4f;
  for (const uint32_t bits : {2u, 4u}) {
    for (const std::vector<float>& group : groups) {
      SCOPED_TRACE(group[0]);
      std::vector<uint8_t> codes(group.size());
      const Affine affine = QuantiseGroup(group, bits, absl::MakeSpan(codes));
      ASSERT_TRUE(std::isfinite(affine.scale) && std::isfinite(affine.zero));
      ASSERT_GT(affine.scale, 0.0f);
      float low = group[0], high = group[0];
      for (const float value : group) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
      const double range = double{high} - double{low};
      const double largest = std::max(std::abs(double{low}), std::abs(double{high}));
      const double top = (1u << bits) - 1;
      // Groups without range keep it within the published floor of 1e-8.
      const double bound = range / top / 2 + 1e-8 + largest * 1e-6;
      for (size_t i = 0; i < group.size(); ++i) {
        ASSERT_LE(codes[i], top);
        const double error = double{Dequantise(codes[i], affine)} - double{group[i]};
        EXPECT_LE(std::abs(error), bound);
      }
    }
  }
}

TEST(AffineTest, SaysWhenTheFloorDecides) {
  std::vector<uint8_t> codes(4);
  const auto floored = [&](const std::vector<float>& group) {
    return QuantiseGroup(group, 2, absl::MakeSpan(codes)).floored;
  };
  EXPECT_TRUE(floored({1e-30f, 2e-30f, 0.0f, 1e-30f}));
  EXPECT_TRUE(floored({1.0f, 1.0f, 1.0f, 1.0f}));
  EXPECT_FALSE(floored({1.0f, 1.0f, 1.5f, 1.0f}));
  EXPECT_FALSE(floored({3e38f, 3e38f, 3e38f, 3e38f}));  // widened to hold zero
}

std::vector<double> Rebuild(const QueryMetric& metric, size_t dim) {
  std::vector<double> lower(dim * dim, 0.0), a(dim * dim, 0.0);
  size_t at = 0;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < i; ++j) lower[i * dim + j] = double{metric.lower[at++]};
    lower[i * dim + i] = 1.0;
  }
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      for (size_t k = 0; k <= std::min(i, j); ++k) {
        a[i * dim + j] += lower[i * dim + k] * metric.diagonal[k] * lower[j * dim + k];
      }
    }
  }
  return a;
}

TEST(QueryMetricTest, FactorsRebuildTheMetric) {
  constexpr size_t kDim = 16;
  Rng rng(4);
  std::vector<float> moment(kDim * kDim, 0.0f);
  for (int sample = 0; sample < 5; ++sample) {  // rank 5 of 16: the ridge must carry it
    const std::vector<float> q = RandomRow(&rng, kDim);
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t j = 0; j < kDim; ++j) moment[i * kDim + j] += q[i] * q[j];
    }
  }
  const std::vector<float> h = HadamardMatrix(kDim);
  const auto metric = MakeQueryMetric(moment, h, kDim);
  ASSERT_TRUE(metric.ok()) << metric.status();
  const std::vector<double> a = Rebuild(*metric, kDim);
  double trace = 0.0;
  std::vector<double> want(kDim * kDim, 0.0);
  for (size_t i = 0; i < kDim; ++i) {
    for (size_t j = 0; j < kDim; ++j) {
      for (size_t k = 0; k < kDim; ++k) {
        for (size_t l = 0; l < kDim; ++l) {
          want[i * kDim + j] +=
              double{h[k * kDim + i]} * double{moment[k * kDim + l]} * double{h[l * kDim + j]};
        }
      }
    }
    trace += want[i * kDim + i];
  }
  for (size_t i = 0; i < kDim; ++i) want[i * kDim + i] += kMetricRidge * trace / kDim;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], want[i], 1e-5 * trace) << i;

  // e^T A e by factors.
  std::vector<double> room(TriangleSize(kDim)), e(kDim), along(kDim);
  for (double& value : e) value = Uniform(&rng);
  const MetricView view = ExpandMetric(*metric, absl::MakeSpan(room));
  ApplyTransposed(view, e, absl::MakeSpan(along));
  double direct = 0.0;
  for (size_t i = 0; i < kDim; ++i) {
    for (size_t j = 0; j < kDim; ++j) direct += e[i] * a[i * kDim + j] * e[j];
  }
  EXPECT_NEAR(MetricDot(view, along, along), direct, 1e-9 * trace);
}

TEST(QueryMetricTest, NothingAndNonsense) {
  const std::vector<float> zero(16, 0.0f);
  const auto none = MakeQueryMetric(zero, {}, 4);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  std::vector<float> negative(16, 0.0f);
  for (size_t i = 0; i < 4; ++i) negative[i * 5] = i == 2 ? -1.0f : 1.0f;
  EXPECT_EQ(MakeQueryMetric(negative, {}, 4).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace crumb
