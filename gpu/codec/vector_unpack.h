// Packed rows to BF16 levels by byte shuffles: every row has at most sixteen levels. Needs AVX2,
// which every vector backend has; included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_UNPACK_H_
#define CRUMB_GPU_CODEC_VECTOR_UNPACK_H_

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// What the codes of a row decode to: the low and the high bytes of BF16, twice each.
struct LevelBytes {
  __m256i low, high;
};

template <class O>
LevelBytes LevelsOf(float scale, float zero) {
  alignas(64) static constexpr float kCodes[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                   8, 9, 10, 11, 12, 13, 14, 15};
  alignas(32) uint16_t bits[16];
  for (uint32_t i = 0; i < 16; i += O::kLanes) {
    const typename O::F shifted = O::Sub(O::Load(kCodes + i), O::Set(zero));
    O::StoreBf16(bits + i, O::Mul(shifted, O::Set(scale)));
  }
  const __m128i a = _mm_load_si128(reinterpret_cast<const __m128i*>(bits));
  const __m128i b = _mm_load_si128(reinterpret_cast<const __m128i*>(bits + 8));
  const __m128i mask = _mm_set1_epi16(0xff);
  const __m128i low = _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask));
  const __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
  return {_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high)};
}

inline void Store8(__m128i codes, const LevelBytes& levels, uint16_t* out) {
  const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(levels.low), codes);
  const __m128i high = _mm_shuffle_epi8(_mm256_castsi256_si128(levels.high), codes);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi8(low, high));
}

inline void Store32(__m256i codes, const LevelBytes& levels, uint16_t* out) {
  const __m256i low = _mm256_shuffle_epi8(levels.low, codes);
  const __m256i high = _mm256_shuffle_epi8(levels.high, codes);
  const __m256i a = _mm256_unpacklo_epi8(low, high);  // 0-7, 16-23
  const __m256i b = _mm256_unpackhi_epi8(low, high);  // 8-15, 24-31
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, b, 0x31));
}

// The low two bits, or all four, of one plane of `width` bytes.
inline void UnpackPlane(const uint8_t* bytes, uint32_t width, int shift, int mask,
                        const LevelBytes& levels, uint16_t* out) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  uint32_t j = 0;
  for (; j + 32 <= width; j += 32) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + j));
    const __m256i codes = _mm256_and_si256(_mm256_srl_epi16(packed, count),
                                           _mm256_set1_epi8(static_cast<char>(mask)));
    Store32(codes, levels, out + j);
  }
  for (; j < width; j += 8) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + j));
    Store8(_mm_and_si128(_mm_srl_epi16(packed, count), _mm_set1_epi8(static_cast<char>(mask))),
           levels, out + j);
  }
}

// Three bits: planes of two, and one bit per element after them.
inline void UnpackThree(const uint8_t* bytes, uint32_t dim, const LevelBytes& levels,
                        uint16_t* out) {
  const uint32_t width = dim / 4;
  const __m128i bits = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
  for (uint32_t i = 0; i < dim; i += 8) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i % width));
    const __m128i count = _mm_cvtsi32_si128(static_cast<int>(i / width * 2));
    const __m128i two = _mm_and_si128(_mm_srl_epi16(packed, count), _mm_set1_epi8(3));
    const __m128i spread = _mm_set1_epi8(static_cast<char>(bytes[width + i / 8]));
    const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, bits), bits);
    Store8(_mm_or_si128(two, _mm_and_si128(set, _mm_set1_epi8(4))), levels, out + i);
  }
}

// Eight elements at a time, each group with levels of its own.
template <class O>
void UnpackGroups(const UnpackJob& job, uint32_t row) {
  const int bits = static_cast<int>(job.bits);
  const __m128i mask = _mm_set1_epi8(static_cast<char>((1 << bits) - 1));
  const uint32_t width = job.dim * job.bits / 8;
  const uint32_t group = job.dim / job.groups;
  const uint8_t* bytes = job.codes + size_t{row} * job.row_bytes;
  for (uint32_t g = 0; g < job.groups; ++g) {
    const size_t at = size_t{row} * job.groups + g;
    const LevelBytes levels = LevelsOf<O>(job.scale[at], job.zero[at]);
    for (uint32_t i = g * group; i < (g + 1) * group; i += 8) {
      const __m128i count = _mm_cvtsi32_si128(static_cast<int>(i / width) * bits);
      const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i % width));
      Store8(_mm_and_si128(_mm_srl_epi16(packed, count), mask), levels,
             job.out + size_t{row} * job.dim + i);
    }
  }
}

template <class O>
void Unpack(const UnpackJob& job) {
  if (job.groups > 1) {
    for (uint32_t row = 0; row < job.rows; ++row) UnpackGroups<O>(job, row);
    return;
  }
  for (uint32_t row = 0; row < job.rows; ++row) {
    const LevelBytes levels = LevelsOf<O>(job.scale[row], job.zero[row]);
    const uint8_t* bytes = job.codes + size_t{row} * job.row_bytes;
    uint16_t* out = job.out + size_t{row} * job.dim;
    if (job.bits == 3) {
      UnpackThree(bytes, job.dim, levels, out);
      continue;
    }
    const int bits = static_cast<int>(job.bits);
    const uint32_t width = job.dim * job.bits / 8;
    for (int plane = 0; plane * bits < 8; ++plane) {
      UnpackPlane(bytes, width, plane * bits, (1 << bits) - 1, levels,
                  out + static_cast<uint32_t>(plane) * width);
    }
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_UNPACK_H_
