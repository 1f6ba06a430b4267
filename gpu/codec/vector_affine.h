// OSCAR's quantiser over sixteen rows at once, bit for bit the scalar formula (the same FP32
// operations in the same order of elements). Templates over the words of one instruction set;
// included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_AFFINE_H_
#define CRUMB_GPU_CODEC_VECTOR_AFFINE_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_clip.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// BF16 in the upper half of each lane. WHY not the instruction: it loses denormals, which a zero
// may be.
template <class O>
typename O::I UpperBf16(typename O::F value) {
  const typename O::I bits = O::AsInt(value);
  const typename O::I odd = O::And(O::template ShiftRight<16>(bits), O::SetI(1));
  const typename O::I rounded = O::AddI(O::AddI(bits, O::SetI(0x7fff)), odd);
  return O::And(rounded, O::SetI(0xffff0000u));
}

template <class O>
void StorePair(const AffineJob& job, size_t at, typename O::F scale, typename O::F zero) {
  O::Store(job.scale + at, scale);
  O::Store(job.zero + at, zero);
  const typename O::I s = UpperBf16<O>(scale);
  const typename O::I z = UpperBf16<O>(zero);
  O::StoreI(job.meta + at, O::Or(O::template ShiftRight<16>(s), z));
  O::Store(job.stored_scale + at, job.wide ? scale : O::AsFloat(s));
  O::Store(job.stored_zero + at, job.wide ? zero : O::AsFloat(z));
}

template <class O>
void AffineRange(const AffineJob& job) {
  using F = typename O::F;
  const uint32_t group = job.dim / job.groups;
  const F top = O::Set(job.top);
  for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
    if (job.clip == ClipKind::kSort) SortThreshold<O>(job, h);
    if (job.clip == ClipKind::kBisect) BisectThreshold<O>(job, h);
    if (job.clip == ClipKind::kNone) O::Store(job.threshold + h, O::Set(__builtin_inff()));
    const F bound = O::Load(job.threshold + h);
    for (uint32_t g = 0; g < job.groups; ++g) {
      const float* y = job.y + size_t{g} * group * kGroupRows + h;
      F low = O::Load(y);
      F high = low;
      for (uint32_t i = 1; i < group; ++i) {
        const F value = O::Load(y + size_t{i} * kGroupRows);
        low = O::Min(value, low);
        high = O::Max(value, high);
      }
      low = O::Max(low, O::Negate(bound));
      high = O::Min(high, bound);
      const size_t at = size_t{g} * kGroupRows + h;
      const F range = O::Sub(high, low);
      const F scale = O::Div(O::Max(range, O::Set(1e-8f)), top);
      O::Store(job.range + at, range);
      StorePair<O>(job, at, scale, O::Div(O::Negate(low), scale));
    }
  }
}

template <class O>
void AffineCodes(const AffineJob& job) {
  using F = typename O::F;
  const uint32_t group = job.dim / job.groups;
  const F half = O::Set(0.5f);
  const F zero_code = O::Set(0.0f);
  const F top = O::Set(job.top + 0.5f);
  for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
    const F bound = O::Load(job.threshold + h);
    const F lower = O::Negate(bound);
    F error = O::Set(0.0f);
    for (uint32_t i = 0; i < job.dim; ++i) {
      const size_t g = size_t{i / group} * kGroupRows + h;
      const F y = O::Load(job.y + size_t{i} * kGroupRows + h);
      const F value = O::Min(O::Max(y, lower), bound);
      const F place = O::Add(O::Div(value, O::Load(job.scale + g)), O::Load(job.zero + g));
      const F code = O::Truncate(O::Min(O::Max(O::Add(place, half), zero_code), top));
      O::StoreBytes(job.codes + size_t{i} * kGroupRows + h, code);
      const F shifted = O::Sub(code, O::Load(job.stored_zero + g));
      const F rest = O::Fnma(shifted, O::Load(job.stored_scale + g), y);
      error = O::Fma(rest, rest, error);
    }
    O::Store(job.error + h, error);
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_AFFINE_H_
