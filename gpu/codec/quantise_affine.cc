// The published clip and group quantiser, literally. Any thread.
#include "gpu/codec/quantise_affine.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr float kRangeMin = 1e-8f;
// Ratios are written with a few decimals (0.96); FP32 keeps them to about seven.
constexpr double kRatioDecimals = 1e6;

float LargestMagnitude(absl::Span<const float> row) {
  float largest = 0.0f;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  return largest;
}

// The kernels' bisection: bit_length(dim) - 1 halvings of [0, max], keeping at most
// dim - index magnitudes above the bound.
float BisectThreshold(absl::Span<const float> row, int index) {
  const auto dim = static_cast<uint32_t>(row.size());
  const auto above_max = static_cast<int64_t>(dim) - index;
  float low = 0.0f;
  float high = LargestMagnitude(row);
  for (int round = 0; round + 1 < static_cast<int>(std::bit_width(dim)); ++round) {
    // WHY double: low + high may pass the largest FP32; the halved sum rounds to the same value.
    const auto middle = static_cast<float>((double{low} + double{high}) * 0.5);
    int64_t above = 0;
    for (const float value : row) above += std::abs(value) > middle ? 1 : 0;
    (above > above_max ? low : high) = middle;
  }
  return high;
}

Affine AffineOfRange(float low, float high, float top) {
  Affine affine;
  affine.scale = std::max(high - low, kRangeMin) / top;
  // WHY: between two huge values of opposite sign the range itself passes the largest FP32.
  if (!std::isfinite(affine.scale)) affine.scale = high / top - low / top;
  affine.zero = -low / affine.scale;
  affine.floored = high - low < kRangeMin;
  return affine;
}

}  // namespace

int ClipIndex(float ratio, uint32_t dim) {
  if (!(ratio > 0.0f)) return -1;
  const double decimal = std::round(double{ratio} * kRatioDecimals) / kRatioDecimals;
  const auto index = static_cast<int64_t>(decimal * dim);
  return static_cast<int>(std::clamp<int64_t>(index, 0, int64_t{dim} - 1));
}

float ClipThreshold(const ClipRule& rule, absl::Span<const float> row, absl::Span<float> work) {
  CRUMB_CHECK(!row.empty() && work.size() >= row.size());
  const int index = ClipIndex(rule.ratio, static_cast<uint32_t>(row.size()));
  CRUMB_CHECK(index >= 0 && rule.method != ClipMethod::kNone);
  if (rule.method == ClipMethod::kBisect) return BisectThreshold(row, index);
  for (size_t i = 0; i < row.size(); ++i) work[i] = std::abs(row[i]);
  const auto ranked = work.begin() + index;
  std::nth_element(work.begin(), ranked, work.begin() + static_cast<ptrdiff_t>(row.size()));
  return *ranked;
}

void ClipRow(const ClipRule& rule, absl::Span<float> row, absl::Span<float> work) {
  if (rule.method == ClipMethod::kNone || rule.ratio <= 0.0f) return;
  const float threshold = ClipThreshold(rule, row, work);
  for (float& value : row) value = std::min(std::max(value, -threshold), threshold);
}

Affine QuantiseGroup(absl::Span<const float> values, uint32_t bits, absl::Span<uint8_t> codes) {
  CRUMB_CHECK(!values.empty() && codes.size() == values.size() && bits >= 1 && bits <= 8);
  const auto top = static_cast<float>((1u << bits) - 1);
  float low = values[0];
  float high = values[0];
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  Affine affine = AffineOfRange(low, high, top);
  // WHY: a (nearly) constant group of huge values has a zero past the largest FP32.
  if (!std::isfinite(affine.zero)) {
    affine = AffineOfRange(std::min(low, 0.0f), std::max(high, 0.0f), top);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float code = (values[i] / affine.scale + affine.zero) + 0.5f;
    codes[i] = static_cast<uint8_t>(std::min(std::max(code, 0.0f), top + 0.5f));
  }
  return affine;
}

}  // namespace crumb
