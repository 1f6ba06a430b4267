// Vector stages on rows as they lie in memory: centring, sums over rows, the base of decoded rows,
// and groups of 16 rows turned across lanes and back. Templates over the words of one instruction
// set (avx512_ops.h, avx2_ops.h); included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_ROWS_H_
#define CRUMB_GPU_CODEC_VECTOR_ROWS_H_

#include <emmintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

template <class O, uint32_t kSums>
uint64_t PeakFp32(uint64_t rounds) {
  const typename O::F one = O::Set(1.0f);
  typename O::F sum[kSums];
  for (uint32_t k = 0; k < kSums; ++k) sum[k] = O::Set(0.0f);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t k = 0; k < kSums; ++k) sum[k] = O::Fma(one, one, sum[k]);
    asm volatile("" : : "x"(sum[0]));
  }
  for (uint32_t k = 0; k < kSums; ++k) asm volatile("" : : "x"(sum[k]));
  return rounds * kSums * O::kLanes;
}

template <class O>
void Centre(const CentreJob& job) {
  for (uint32_t row = 0; row < job.rows; ++row) {
    const size_t at = size_t{row} * job.dim;
    for (uint32_t i = 0; i < job.dim; i += O::kLanes) {
      O::StoreBf16(job.out + at + i, O::Sub(O::LoadBf16(job.x + at + i), O::Load(job.base + i)));
    }
  }
}

template <class O>
void ColumnSums(const CentreJob& job, double* sums) {
  for (uint32_t row = 0; row < job.rows; ++row) {
    const uint16_t* x = job.x + size_t{row} * job.dim;
    for (uint32_t i = 0; i < job.dim; i += O::kLanes) {
      const typename O::F base = job.base != nullptr ? O::Load(job.base + i) : O::Set(0.0f);
      O::AddDoubles(sums + i, O::Sub(O::LoadBf16(x + i), base));
    }
  }
}

inline const float* BaseOf(const MultiplyJob& job, uint32_t row) {
  return job.base[job.flags != nullptr ? job.flags[2 * row] >> 7 : 0];
}

template <class O>
void AddBase(const MultiplyJob& job) {
  for (uint32_t row = 0; row < job.rows; ++row) {
    const size_t at = size_t{row} * job.dim;
    const float* base = BaseOf(job, row);
    for (uint32_t i = 0; i < job.dim; i += O::kLanes) {
      O::StoreBf16(job.out + at + i, O::Add(O::LoadBf16(job.x + at + i), O::Load(base + i)));
    }
  }
}

// Four rows of four 32-bit words at a time; missing rows are zero.
inline void TransposePairs(const GroupLoadJob& job) {
  const uint32_t pairs = job.dim / 2;
  for (uint32_t first = 0; first < kGroupRows; first += 4) {
    for (uint32_t p = 0; p < pairs; p += 4) {
      __m128 r[4];
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t row = first + k;
        r[k] = _mm_setzero_ps();
        if (row < job.count) {
          const uint16_t* from = job.rows + size_t{row} * job.dim + 2 * p;
          r[k] = _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        }
      }
      _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
      for (uint32_t k = 0; k < 4; ++k) {
        uint32_t* to = job.pairs + size_t{p + k} * kGroupRows + first;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_castps_si128(r[k]));
      }
    }
  }
}

template <class O>
void GroupLoad(const GroupLoadJob& job) {
  TransposePairs(job);
  const typename O::I high = O::SetI(0xffff0000u);
  for (uint32_t p = 0; p < job.dim / 2; ++p) {
    for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
      const typename O::I pair = O::LoadI(job.pairs + size_t{p} * kGroupRows + h);
      float* y = job.y + size_t{2 * p} * kGroupRows + h;
      O::Store(y, O::AsFloat(O::template ShiftLeft<16>(pair)));
      O::Store(y + kGroupRows, O::AsFloat(O::And(pair, high)));
    }
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_ROWS_H_
