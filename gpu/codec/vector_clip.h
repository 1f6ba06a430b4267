// Clip thresholds of sixteen rows at once: the order statistic of the magnitudes without a sort, or
// the published bisection, both exact. Templates over the words of one instruction set; included by
// the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_CLIP_H_
#define CRUMB_GPU_CODEC_VECTOR_CLIP_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// Largest rank from the top that is found by keeping a sorted list.
inline constexpr uint32_t kListMax = 12;

// The kTop-th largest magnitude of each row. A list of the kTop largest is kept sorted for the even
// and for the odd elements (the two halves of a pair), then both are merged.
template <class O, uint32_t kTop>
void TopMagnitude(const AffineJob& job, uint32_t h) {
  using I = typename O::I;
  const I magnitude = O::SetI(0x7fff7fffu);
  I list[kTop];
  for (uint32_t k = 0; k < kTop; ++k) list[k] = O::SetI(0);
  for (uint32_t p = 0; p < job.dim / 2; ++p) {
    I value = O::And(O::LoadI(job.pairs + size_t{p} * kGroupRows + h), magnitude);
    for (uint32_t k = 0; k < kTop; ++k) {
      const I larger = O::Max16(list[k], value);
      value = O::Min16(list[k], value);
      list[k] = larger;
    }
  }
  // The n-th largest of two sorted lists is the best of min(a_i, b_(n-i)).
  const I low = O::SetI(0xffff);
  I best = O::Max16(O::And(list[kTop - 1], low), O::template ShiftRight<16>(list[kTop - 1]));
  for (uint32_t i = 0; i + 1 < kTop; ++i) {
    const I even = O::And(list[i], low);
    const I odd = O::template ShiftRight<16>(list[kTop - 2 - i]);
    best = O::Max16(best, O::Min16(even, odd));
  }
  O::Store(job.threshold + h, O::AsFloat(O::template ShiftLeft<16>(best)));
}

// Any rank: the largest magnitude that at least `top` others reach, found bit by bit.
template <class O>
void BitMagnitude(const AffineJob& job, uint32_t top, uint32_t h) {
  using I = typename O::I;
  const I low = O::SetI(0x7fff);
  I found = O::SetI(0);
  for (uint32_t bit = 0x4000; bit != 0; bit >>= 1) {
    const I trial = O::Or(found, O::SetI(bit));
    I count = O::SetI(0);
    for (uint32_t p = 0; p < job.dim / 2; ++p) {
      const I pair = O::LoadI(job.pairs + size_t{p} * kGroupRows + h);
      count = O::CountGreaterEqual(count, O::And(pair, low), trial);
      count = O::CountGreaterEqual(count, O::And(O::template ShiftRight<16>(pair), low), trial);
    }
    found = O::SelectGreaterEqual(count, O::SetI(top), trial, found);
  }
  O::Store(job.threshold + h, O::AsFloat(O::template ShiftLeft<16>(found)));
}

template <class O>
void SortThreshold(const AffineJob& job, uint32_t h) {
  const uint32_t top = job.dim - job.rank;
  switch (top) {
    case 1:
      return TopMagnitude<O, 1>(job, h);
    case 2:
      return TopMagnitude<O, 2>(job, h);
    case 3:
      return TopMagnitude<O, 3>(job, h);
    case 4:
      return TopMagnitude<O, 4>(job, h);
    case 5:
      return TopMagnitude<O, 5>(job, h);
    case 6:
      return TopMagnitude<O, 6>(job, h);
    case 7:
      return TopMagnitude<O, 7>(job, h);
    case 8:
      return TopMagnitude<O, 8>(job, h);
    case 9:
      return TopMagnitude<O, 9>(job, h);
    case 10:
      return TopMagnitude<O, 10>(job, h);
    case 11:
      return TopMagnitude<O, 11>(job, h);
    case kListMax:
      return TopMagnitude<O, kListMax>(job, h);
    default:
      return BitMagnitude<O>(job, top, h);
  }
}

// The published bisection. WHY no double as in the reference: rows whose sums could leave FP32 do
// not come here, and halving is exact.
template <class O>
void BisectThreshold(const AffineJob& job, uint32_t h) {
  using F = typename O::F;
  uint32_t rounds = 0;
  while ((job.dim >> (rounds + 1)) != 0) ++rounds;
  F low = O::Set(0.0f);
  F high = O::Set(0.0f);
  for (uint32_t i = 0; i < job.dim; ++i) {
    high = O::Max(O::Abs(O::Load(job.y + size_t{i} * kGroupRows + h)), high);
  }
  const F above_max = O::Set(static_cast<float>(job.dim - job.rank));
  const F one = O::Set(1.0f);
  for (uint32_t round = 0; round < rounds; ++round) {
    const F middle = O::Mul(O::Add(low, high), O::Set(0.5f));
    F above = O::Set(0.0f);
    for (uint32_t i = 0; i < job.dim; ++i) {
      const F value = O::Abs(O::Load(job.y + size_t{i} * kGroupRows + h));
      above = O::Add(above, O::Select(O::Less(middle, value), one, O::Set(0.0f)));
    }
    const typename O::M many = O::Less(above_max, above);
    low = O::Select(many, middle, low);
    high = O::Select(many, high, middle);
  }
  O::Store(job.threshold + h, high);
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_CLIP_H_
