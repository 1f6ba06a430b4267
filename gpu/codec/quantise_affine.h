// OSCAR's quantiser (arXiv 2605.17757; also its INT4 and no-rotation baselines): clip a rotated row
// at an order statistic, then one FP32 scale and zero per group, codes computed with the unrounded
// pair. FP32 arithmetic without contraction, bit for bit the published formula wherever that is
// finite; where it is not, the group's range is widened to hold zero, so that metadata stays
// finite. Pure functions on the caller's memory; any thread.
#ifndef CRUMB_GPU_CODEC_QUANTISE_AFFINE_H_
#define CRUMB_GPU_CODEC_QUANTISE_AFFINE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "gpu/codec/descriptor.h"

namespace crumb {

struct ClipRule {
  ClipMethod method = ClipMethod::kNone;
  float ratio = 0.0f;
};

// Rank of the magnitude that clips a row of `dim`: clamp(int(ratio * dim), 0, dim - 1), the ratio
// taken as the decimal number it was written as. -1: no clip.
int ClipIndex(float ratio, uint32_t dim);

// The magnitude at that rank (kSort), or the published bisection's bound on it (kBisect). `work`
// holds row.size() floats. REQUIRES: the rule clips; the row is finite and not empty.
float ClipThreshold(const ClipRule& rule, absl::Span<const float> row, absl::Span<float> work);

// Clamps the row to +-threshold in place; nothing if the rule does not clip.
void ClipRow(const ClipRule& rule, absl::Span<float> row, absl::Span<float> work);

struct Affine {
  float scale = 0.0f;
  float zero = 0.0f;
  bool floored = false;  // the range was below the published floor of 1e-8: values may be lost
};

// Scale and zero of one group, codes 0..2^bits-1. REQUIRES: finite values; codes.size() ==
// values.size().
Affine QuantiseGroup(absl::Span<const float> values, uint32_t bits, absl::Span<uint8_t> codes);

// (code - zero) * scale in FP32, not yet rounded to BF16; the same for Lloyd-Max pages, whose
// scale and zero are made for it.
inline float Dequantise(uint8_t code, const Affine& affine) {
  return (static_cast<float>(code) - affine.zero) * affine.scale;
}

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_QUANTISE_AFFINE_H_
