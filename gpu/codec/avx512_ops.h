// AVX-512 words of the vector kernels: sixteen FP32 lanes. Included by avx512_kernels.cc alone.
// WHY an unnamed namespace in a header: what is compiled with AVX-512 flags must stay in the file
// that asked for them.
#ifndef CRUMB_GPU_CODEC_AVX512_OPS_H_
#define CRUMB_GPU_CODEC_AVX512_OPS_H_

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace crumb {
namespace {

struct Ops {
  static constexpr uint32_t kLanes = 16;
  // Columns and row groups that a feedback pass keeps in its registers.
  static constexpr uint32_t kColumns = 8;
  static constexpr uint32_t kRowGroups = 1;
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;

  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F Set(float v) { return _mm512_set1_ps(v); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
  static F Fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // The second operand where both are zeros.
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Abs(F a) { return _mm512_abs_ps(a); }
  static F Negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F Round(F a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static M Less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M Equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static F Select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static F Truncate(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
  // Small whole numbers to bytes and back.
  static void StoreBytes(uint8_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)));
  }

  static I LoadI(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static void StoreI(uint32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static I SetI(uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  static I Or(I a, I b) { return _mm512_or_si512(a, b); }
  static I AddI(I a, I b) { return _mm512_add_epi32(a, b); }
  static I SubI(I a, I b) { return _mm512_sub_epi32(a, b); }
  template <int kBits>
  static I ShiftLeft(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I ShiftRight(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static I Max16(I a, I b) { return _mm512_max_epu16(a, b); }
  static I Min16(I a, I b) { return _mm512_min_epu16(a, b); }
  // count + 1 in every 32-bit lane where a >= b, as unsigned.
  static I CountGreaterEqual(I count, I a, I b) {
    return _mm512_mask_add_epi32(count, _mm512_cmpge_epu32_mask(a, b), count, SetI(1));
  }
  // a where count >= least, else b.
  static I SelectGreaterEqual(I count, I least, I a, I b) {
    return _mm512_mask_blend_epi32(_mm512_cmpge_epu32_mask(count, least), b, a);
  }
  static F AsFloat(I a) { return _mm512_castsi512_ps(a); }
  static I AsInt(F a) { return _mm512_castps_si512(a); }

  // Sixteen BF16 values to FP32 and back (to nearest, ties to even).
  static F LoadBf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return AsFloat(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F RoundBf16(F v) {
    const __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
    return AsFloat(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void StoreBf16(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }

  // Adds eight floats to eight sums in double.
  static void AddDoubles(double* sums, F v) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), low));
    _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), high));
  }
};

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_AVX512_OPS_H_
