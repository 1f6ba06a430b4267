// AVX2 and FMA words of the vector kernels: eight FP32 lanes. Included by avx2_kernels.cc alone.
// WHY an unnamed namespace in a header: what is compiled with AVX2 flags must stay in the file that
// asked for them.
#ifndef CRUMB_GPU_CODEC_AVX2_OPS_H_
#define CRUMB_GPU_CODEC_AVX2_OPS_H_

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace crumb {
namespace {

struct Ops {
  static constexpr uint32_t kLanes = 8;
  // Columns and row groups that a feedback pass keeps in its sixteen registers.
  static constexpr uint32_t kColumns = 4;
  static constexpr uint32_t kRowGroups = 2;
  using F = __m256;
  using I = __m256i;
  using M = __m256;

  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F Set(float v) { return _mm256_set1_ps(v); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }    // a b + c
  static F Fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  // The second operand where both are zeros.
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static F Negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F Round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static M Less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static M Equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static F Select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  static F Truncate(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
  // Small whole numbers to bytes.
  static void StoreBytes(uint8_t* p, F v) {
    const __m256i words = _mm256_cvttps_epi32(v);
    const __m128i halves =
        _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(halves, halves));
  }

  static I LoadI(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void StoreI(uint32_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static I SetI(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  static I Or(I a, I b) { return _mm256_or_si256(a, b); }
  static I AddI(I a, I b) { return _mm256_add_epi32(a, b); }
  static I SubI(I a, I b) { return _mm256_sub_epi32(a, b); }
  template <int kBits>
  static I ShiftLeft(I a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I ShiftRight(I a) {
    return _mm256_srli_epi32(a, kBits);
  }
  static I Max16(I a, I b) { return _mm256_max_epu16(a, b); }
  static I Min16(I a, I b) { return _mm256_min_epu16(a, b); }
  // count + 1 in every 32-bit lane where a >= b; both below 2^31.
  static I CountGreaterEqual(I count, I a, I b) {
    return _mm256_add_epi32(_mm256_add_epi32(count, SetI(1)), _mm256_cmpgt_epi32(b, a));
  }
  // a where count >= least, else b; counts below 2^31.
  static I SelectGreaterEqual(I count, I least, I a, I b) {
    return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi32(least, count));
  }
  static F AsFloat(I a) { return _mm256_castsi256_ps(a); }
  static I AsInt(F a) { return _mm256_castps_si256(a); }

  // Eight BF16 values to FP32 and back (to nearest, ties to even; finite values only).
  static F LoadBf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return AsFloat(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static I Rounded(F v) {  // BF16 in the upper half, anything below
    const I bits = AsInt(v);
    const I odd = And(ShiftRight<16>(bits), SetI(1));
    return AddI(AddI(bits, SetI(0x7fff)), odd);
  }
  static F RoundBf16(F v) { return AsFloat(And(Rounded(v), SetI(0xffff0000u))); }
  static void StoreBf16(uint16_t* p, F v) {
    const I bits = ShiftRight<16>(Rounded(v));
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }

  // Adds eight floats to eight sums in double.
  static void AddDoubles(double* sums, F v) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low));
    _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), high));
  }
};

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_AVX2_OPS_H_
