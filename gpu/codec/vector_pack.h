// Planar packing of a group's codes, which lie across lanes, into rows of bytes. Needs AVX2, which
// every vector backend has; included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_PACK_H_
#define CRUMB_GPU_CODEC_VECTOR_PACK_H_

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// [bytes][16] to rows of `bytes` bytes; `bytes` is a multiple of 8.
inline void TransposeBytes(const uint8_t* from, uint32_t bytes, const GroupPackJob& job,
                           uint8_t* out) {
  for (uint32_t j = 0; j < bytes; j += 8) {
    __m128i v[8];
    for (uint32_t k = 0; k < 8; ++k) {
      v[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + size_t{j + k} * kGroupRows));
    }
    for (uint32_t half = 0; half < 2; ++half) {
      __m128i a[4], b[4];
      for (uint32_t k = 0; k < 4; ++k) {  // bytes k and k + 4 of eight rows
        a[k] = half == 0 ? _mm_unpacklo_epi8(v[k], v[k + 4]) : _mm_unpackhi_epi8(v[k], v[k + 4]);
      }
      b[0] = _mm_unpacklo_epi8(a[0], a[2]);  // 0 2 4 6 of rows 0-3
      b[1] = _mm_unpacklo_epi8(a[1], a[3]);
      b[2] = _mm_unpackhi_epi8(a[0], a[2]);
      b[3] = _mm_unpackhi_epi8(a[1], a[3]);
      const __m128i rows[4] = {_mm_unpacklo_epi8(b[0], b[1]), _mm_unpackhi_epi8(b[0], b[1]),
                               _mm_unpacklo_epi8(b[2], b[3]), _mm_unpackhi_epi8(b[2], b[3])};
      for (uint32_t k = 0; k < 8; ++k) {
        const uint32_t row = half * 8 + k;
        if (row >= job.count) break;
        const __m128i two = rows[k / 2];
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out + size_t{row} * job.row_bytes + j),
                         k % 2 == 0 ? two : _mm_unpackhi_epi64(two, two));
      }
    }
  }
}

// The planes of 32 neighbouring bytes, each masked and moved to its place. Codes lie in bytes of
// their own, so shifts of 16-bit words carry nothing over.
template <int kBits>
__m256i Join(const uint8_t* codes, size_t plane) {
  const auto at = [codes, plane](int k) {
    const auto* from = reinterpret_cast<const __m256i*>(codes + static_cast<size_t>(k) * plane);
    const __m256i mask = _mm256_set1_epi8((1 << kBits) - 1);
    return _mm256_slli_epi16(_mm256_and_si256(_mm256_loadu_si256(from), mask), k * kBits);
  };
  __m256i joined = _mm256_or_si256(at(0), at(1));
  if (kBits == 2) joined = _mm256_or_si256(joined, _mm256_or_si256(at(2), at(3)));
  return joined;
}

// The third bit of every element, low first.
inline void PackThird(const GroupPackJob& job, uint8_t* out) {
  for (uint32_t j = 0; j < job.dim / 8; ++j) {
    __m128i byte = _mm_setzero_si128();
    for (int k = 0; k < 8; ++k) {
      const uint8_t* codes = job.codes + (size_t{8} * j + static_cast<size_t>(k)) * kGroupRows;
      const __m128i code = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
      const __m128i bit = _mm_and_si128(_mm_srli_epi16(code, 2), _mm_set1_epi8(1));
      byte = _mm_or_si128(byte, _mm_sll_epi16(bit, _mm_cvtsi32_si128(k)));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + size_t{j} * kGroupRows), byte);
  }
}

// 3 bits: the planes of the low two, then one bit per element.
inline void GroupPack(const GroupPackJob& job) {
  const uint32_t bytes = job.bits == 4 ? job.dim / 2 : job.dim / 4;
  const size_t plane = size_t{bytes} * kGroupRows;
  for (size_t i = 0; i < plane; i += 32) {
    const __m256i joined =
        job.bits == 4 ? Join<4>(job.codes + i, plane) : Join<2>(job.codes + i, plane);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(job.work + i), joined);
  }
  TransposeBytes(job.work, bytes, job, job.out);
  if (job.bits != 3) return;
  PackThird(job, job.work);
  for (uint32_t row = 0; row < job.count; ++row) {
    uint8_t* top = job.out + size_t{row} * job.row_bytes + bytes;
    for (uint32_t j = 0; j < job.dim / 8; ++j) top[j] = job.work[size_t{j} * kGroupRows + row];
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_PACK_H_
