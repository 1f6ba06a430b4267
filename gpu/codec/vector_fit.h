// Where the search of a crumb row starts, over sixteen rows at once: the full range, or a smaller
// one where plain rounding errs less. Templates over the words of one instruction set; included by
// the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_FIT_H_
#define CRUMB_GPU_CODEC_VECTOR_FIT_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// Squared error of plain rounding with scales shrunk to `kSteps` shares of the full range.
template <class O, uint32_t kSteps>
void FitRange(const CrumbFitJob& job, uint32_t h) {
  using F = typename O::F;
  const F zero = O::Load(job.zero + h);
  const F full = O::Load(job.scale + h);
  const F top = O::Set(job.top);
  const F none = O::Set(0.0f);
  F scale[kSteps], inverse[kSteps], error[kSteps];
  for (uint32_t k = 0; k < kSteps; ++k) {
    scale[k] = O::Mul(full, O::Set(1.0f - 0.1f * static_cast<float>(k)));
    inverse[k] = O::Div(O::Set(1.0f), scale[k]);
    error[k] = none;
  }
  for (uint32_t i = 0; i < job.dim; ++i) {
    const F y = O::Load(job.y + size_t{i} * kGroupRows + h);
    for (uint32_t k = 0; k < kSteps; ++k) {
      // In units of the scale, as in vector_feedback.h.
      const F place = O::Fma(y, inverse[k], zero);
      const F rest = O::Sub(place, O::Round(O::Min(O::Max(place, none), top)));
      error[k] = O::Fma(rest, rest, error[k]);
    }
  }
  for (uint32_t k = 0; k < kSteps; ++k) error[k] = O::Mul(error[k], O::Mul(scale[k], scale[k]));
  F best = scale[0];
  F least = error[0];
  for (uint32_t k = 1; k < kSteps; ++k) {
    const typename O::M less = O::Less(error[k], least);
    best = O::Select(less, scale[k], best);
    least = O::Select(less, error[k], least);
  }
  O::Store(job.scale + h, best);
}

template <class O>
void CrumbFit(const CrumbFitJob& job) {
  using F = typename O::F;
  const F none = O::Set(0.0f);
  const F top = O::Set(job.top);
  for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
    F low = O::Load(job.y + h);
    F high = low;
    F energy = none;
    for (uint32_t i = 0; i < job.dim; ++i) {
      const F y = O::Load(job.y + size_t{i} * kGroupRows + h);
      low = O::Min(y, low);
      high = O::Max(y, high);
      energy = O::Fma(y, y, energy);
    }
    O::Store(job.energy + h, energy);
    const F peak = O::Max(O::Abs(low), O::Abs(high));
    O::Store(job.peak + h, peak);
    // A constant row has no range; with zero in it the row is one of the levels. Rows of zeros get
    // scale 1 and zero 0: every code is 0.
    const typename O::M constant = O::Equal(low, high);
    low = O::Select(constant, O::Min(low, none), low);
    high = O::Select(constant, O::Max(high, none), high);
    const typename O::M empty = O::Equal(peak, none);
    const F range = O::Select(empty, top, O::Sub(high, low));
    O::Store(job.scale + h, O::Div(range, top));
    const F zero = O::Div(O::Mul(O::Negate(top), low), range);
    O::Store(job.zero + h, O::Select(empty, none, zero));
    if (job.steps == 4) FitRange<O, 4>(job, h);
    if (job.steps == 6) FitRange<O, 6>(job, h);
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_FIT_H_
