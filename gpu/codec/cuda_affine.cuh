// OSCAR's quantiser on rotated rows: range within the clip, scale and zero, codes; bit for bit as
// quantise_affine.cc. y holds two rows in pairs: row g low, row g + 8 high. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_AFFINE_CUH_
#define CRUMB_GPU_CODEC_CUDA_AFFINE_CUH_

#include <cuda_bf16.h>

#include "gpu/codec/cuda_rows.cuh"
#include "gpu/codec/cuda_tile.cuh"

namespace crumb::cuda {

__device__ __forceinline__ uint32_t MaxBf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t MinBf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// 0xffff in each half where a >= b.
__device__ __forceinline__ uint32_t NotBelow(uint32_t a, uint32_t b) {
  const __nv_bfloat162 x = *reinterpret_cast<const __nv_bfloat162*>(&a);
  const __nv_bfloat162 y = *reinterpret_cast<const __nv_bfloat162*>(&b);
  return __hge2_mask(x, y);
}
__device__ __forceinline__ float HalfOf(uint32_t pair, int half) {
  return half == 0 ? LowBf16(pair) : HighBf16(pair);
}

struct Affine {
  float scale;
  float zero;
  bool floored;  // the range was below the published floor
};

// x / s, correctly rounded. kReciprocal: by the reciprocal r of s and two corrections, right for
// magnitudes below 2^60 and divisors from 2^-60 on.
template <bool kReciprocal>
__device__ __forceinline__ float Divide(float x, float s, float r) {
  if constexpr (!kReciprocal) return __fdiv_rn(x, s);
  float q = __fmul_rn(x, r);
  q = fmaf(fmaf(-s, q, x), r, q);
  return fmaf(fmaf(-s, q, x), r, q);
}
template <bool kReciprocal>
__device__ __forceinline__ float Reciprocal(float s) {
  if constexpr (!kReciprocal) return 0.0f;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
  return fmaf(fmaf(-s, r, 1.0f), r, r);
}
// Whether both halves are below 2^60, of BF16 magnitudes.
__device__ __forceinline__ bool SmallMagnitudes(uint32_t pair) {
  constexpr uint32_t kLimit = (127 + 60) << 7;
  return (pair & 0xffffu) < kLimit && pair >> 16 < kLimit;
}
// Whether Divide<true> serves a row with these values: scales are never below 1e-8 / 15.
__device__ __forceinline__ bool Bounded(float low, float high) {
  return fmaxf(fabsf(low), fabsf(high)) < 0x1p60f;
}

template <bool kReciprocal>
__device__ __forceinline__ Affine AffineOfRange(float low, float high, float top) {
  constexpr float kRangeMin = 1e-8f;
  Affine out;
  const float range = __fsub_rn(high, low);
  const float wide = fmaxf(range, kRangeMin);
  out.scale = Divide<kReciprocal>(wide, top, 1.0f / top);
  if constexpr (!kReciprocal) {
    // Between two huge values of opposite sign the range itself passes the largest FP32.
    if (isinf(out.scale)) out.scale = __fsub_rn(__fdiv_rn(high, top), __fdiv_rn(low, top));
  }
  out.zero = Divide<kReciprocal>(-low, out.scale, Reciprocal<kReciprocal>(out.scale));
  out.floored = range < kRangeMin;
  return out;
}

template <bool kReciprocal>
__device__ __forceinline__ Affine AffineOf(float low, float high, float top) {
  Affine out = AffineOfRange<kReciprocal>(low, high, top);
  if constexpr (!kReciprocal) {
    // A (nearly) constant group of huge values has a zero past the largest FP32.
    if (!isfinite(out.zero)) out = AffineOfRange<false>(fminf(low, 0.0f), fmaxf(high, 0.0f), top);
  }
  return out;
}

// The least value of a group is zero: which zero, is that of its first element, and decides the
// sign of the stored zero. Elements that the clip made zero count with their sign. Rare.
template <int kCount, int kPlanes>
__device__ __forceinline__ float FirstZero(const uint32_t (&y)[kCount], int half, int first_plane,
                                           int end_plane, uint32_t lanes, bool all) {
  constexpr int kRun = kCount / kPlanes;
  uint32_t key = 0xffffffffu;
#pragma unroll
  for (int q = 0; q < kCount; ++q) {
    const float v = HalfOf(y[q], half);
    const int plane = q / kRun;
    if ((v != 0.0f && !all) || plane < first_plane || plane >= end_plane) continue;
    const uint32_t column = plane * 4 * kRun + LaneColumn() * kRun + q % kRun;
    key = min(key, column << 1 | __float_as_uint(v) >> 31);
  }
  if (lanes > 1) key = min(key, __shfl_xor_sync(0xffffffffu, key, 1));
  if (lanes > 2) key = min(key, __shfl_xor_sync(0xffffffffu, key, 2));
  return (key & 1) != 0 ? -0.0f : 0.0f;
}

// (x / scale + zero) + 0.5, rounded at each step: the code before it is cut off.
template <bool kReciprocal>
__device__ __forceinline__ float CodeValue(float x, const Affine& affine, float r) {
  return __fadd_rn(__fadd_rn(Divide<kReciprocal>(x, affine.scale, r), affine.zero), 0.5f);
}

// Smallest BF16 whose code is at least `code` (1 to 3). Codes grow with x, so three such bounds
// decide all codes of a row. WHY `slack`: how far below code - 0.5 - zero a quotient may lie and
// still reach the code, by the rounding of the two sums; without it bounds near zero are missed.
template <bool kReciprocal>
__device__ __forceinline__ uint32_t CodeBound(float code, float slack, const Affine& affine,
                                              float r) {
  const float quotient = __fsub_rn(__fsub_rn(__fsub_rn(code, 0.5f), affine.zero), slack);
  const uint32_t near = PackBf16(__fmul_rn(quotient, affine.scale), 0.0f) & 0xffffu;
  const float reached = CodeValue<kReciprocal>(__uint_as_float(near << 16), affine, r);
  const uint32_t away = (near & 0x8000u) != 0 ? near - 1 : near + 1;
  const uint32_t up = (near & 0x7fffu) == 0 ? 1u : away;
  return reached >= code ? near : up;
}

// What one lane works out of its row (g + 8 * (c & 1)): the pair, and two bounds: of codes 1 and 2,
// or for c >= 2 of 3 and 2.
struct RowBounds {
  Affine affine;
  uint32_t bounds;
};

template <bool kReciprocal>
__device__ __forceinline__ RowBounds BoundsOf(float low, float high, bool upper) {
  RowBounds out;
  out.affine = AffineOf<kReciprocal>(low, high, 3.0f);
  const float r = Reciprocal<kReciprocal>(out.affine.scale);
  const uint32_t first =
      CodeBound<kReciprocal>(upper ? 3.0f : 1.0f, upper ? 0x1p-23f : 0x1.8p-25f, out.affine, r);
  out.bounds = first | CodeBound<kReciprocal>(2.0f, 0x1p-24f, out.affine, r) << 16;
  return out;
}
inline __device__ __noinline__ RowBounds BoundsOfAny(float low, float high, bool upper) {
  return BoundsOf<false>(low, high, upper);
}

// Both halves of `low` that are zero get the sign of the first zero of their row.
template <int kCount, int kPlanes>
__device__ __forceinline__ uint32_t SignZeros(const uint32_t (&y)[kCount], uint32_t low,
                                              uint32_t bound) {
  float least[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    least[half] = HalfOf(low, half);
    const float zero =
        FirstZero<kCount, kPlanes>(y, half, 0, kPlanes, 4, HalfOf(bound, half) == 0.0f);
    if (least[half] == 0.0f) least[half] = zero;
  }
  return PackBf16(least[0], least[1]);
}

__device__ __forceinline__ uint32_t QuadMax(uint32_t v) {
  v = MaxBf16(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return MaxBf16(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ uint32_t QuadMin(uint32_t v) {
  v = MinBf16(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return MinBf16(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

// Four bytes of codes of both rows: byte i of word w in the low bits of each half of bytes[i].
template <int kCount>
__device__ __forceinline__ void BytesByMasks(const uint32_t (&y)[kCount], int w, uint32_t bound1,
                                             uint32_t bound2, uint32_t bound3,
                                             uint32_t (&bytes)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes[i] = 0;
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t v = y[(p * (kCount / 16) + w) * 4 + i];
      const uint32_t at1 = NotBelow(v, bound1);
      const uint32_t at2 = NotBelow(v, bound2);
      const uint32_t at3 = NotBelow(v, bound3);
      bytes[i] |= at2 & 0x00020002u << (2 * p);
      bytes[i] |= (at1 ^ at2 ^ at3) & 0x00010001u << (2 * p);
    }
  }
}

__device__ __forceinline__ uint32_t OneWhereNotBelow(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("set.ge.f16x2.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t MultiplyAddF16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

// The same with sums of ones in FP16, on another pipe than the comparisons. WHY it is right: below
// 2^60 BF16 patterns are in order as FP16 too, and FP16 holds every sum below 2048.
template <int kCount>
__device__ __forceinline__ void BytesBySums(const uint32_t (&y)[kCount], int w, uint32_t bound1,
                                            uint32_t bound2, uint32_t bound3,
                                            uint32_t (&bytes)[4]) {
  constexpr uint32_t kPower[4] = {0x3c003c00u, 0x44004400u, 0x4c004c00u, 0x54005400u};  // 4^p
#pragma unroll
  for (int i = 0; i < 4; ++i) bytes[i] = 0x64006400u;  // 1024: the sum is in the low bits
#pragma unroll
  for (int p = 0; p < 4; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t v = y[(p * (kCount / 16) + w) * 4 + i];
      bytes[i] = MultiplyAddF16(OneWhereNotBelow(v, bound1), kPower[p], bytes[i]);
      bytes[i] = MultiplyAddF16(OneWhereNotBelow(v, bound2), kPower[p], bytes[i]);
      bytes[i] = MultiplyAddF16(OneWhereNotBelow(v, bound3), kPower[p], bytes[i]);
    }
  }
}

// Two bits, one scale for the row: codes of both rows in words as they are stored, by bounds.
// `small`: no magnitude of the warp's rows reaches 2^60, whatever the clip makes of it.
// Each lane works out the affine pair of one row (g + 8 * (c & 1)) and returns it.
template <int kCount>
__device__ __forceinline__ Affine QuantiseByBounds(const uint32_t (&y)[kCount], uint32_t low,
                                                   uint32_t high, bool small,
                                                   uint32_t (&words)[2][kCount / 16]) {
  const uint32_t c = LaneColumn(), lane = threadIdx.x & 31;
  const float least = HalfOf(low, c & 1), most = HalfOf(high, c & 1);
  const bool upper = (c & 2) != 0;
  const bool bounded = __all_sync(0xffffffffu, Bounded(least, most));
  const RowBounds own =
      bounded ? BoundsOf<true>(least, most, upper) : BoundsOfAny(least, most, upper);
  const Affine affine = own.affine;
  const uint32_t both = own.bounds;
  const uint32_t low_g = __shfl_sync(0xffffffffu, both, lane & 28);
  const uint32_t low_h = __shfl_sync(0xffffffffu, both, (lane & 28) + 1);
  const uint32_t top_g = __shfl_sync(0xffffffffu, both, (lane & 28) + 2);
  const uint32_t top_h = __shfl_sync(0xffffffffu, both, (lane & 28) + 3);
  const uint32_t bound1 = __byte_perm(low_g, low_h, 0x5410);
  const uint32_t bound2 = __byte_perm(low_g, low_h, 0x7632);
  const uint32_t bound3 = __byte_perm(top_g, top_h, 0x5410);
  constexpr int kWords = kCount / 16;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t bytes[4];
    if (small) {
      BytesBySums<kCount>(y, w, bound1, bound2, bound3, bytes);
    } else {
      BytesByMasks<kCount>(y, w, bound1, bound2, bound3, bytes);
    }
    const uint32_t a = __byte_perm(bytes[0], bytes[1], 0x6240);
    const uint32_t b = __byte_perm(bytes[2], bytes[3], 0x6240);
    words[0][w] = __byte_perm(a, b, 0x5410);
    words[1][w] = __byte_perm(a, b, 0x7632);
  }
  return affine;
}

// Any width and any group of whole lane runs: a division per element.
template <int kCount, int kBits>
struct GroupQuantiser {
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kRun = kCount / kPlanes;  // neighbouring elements of a lane in a plane
  static constexpr int kWords = kRun / 4;
  static constexpr float kTop = static_cast<float>((1 << kBits) - 1);

  // Scale and zero of the group that holds this lane's run in `plane`; `bound` clips.
  __device__ static Affine Of(const uint32_t (&y)[kCount], int half, int plane, uint32_t group,
                              float bound, bool* bounded) {
    const uint32_t planes = group > 4 * kRun ? group / (4 * kRun) : 1;
    const uint32_t first = plane / planes * planes;
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      if (p < first || p >= first + planes) continue;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float v = HalfOf(y[p * kRun + i], half);
        low = fminf(low, v), high = fmaxf(high, v);
      }
    }
    if (group > kRun) {
      low = fminf(low, __shfl_xor_sync(0xffffffffu, low, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    }
    if (group > 2 * kRun) {
      low = fminf(low, __shfl_xor_sync(0xffffffffu, low, 2));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
    }
    low = fminf(fmaxf(low, -bound), bound);
    high = fminf(fmaxf(high, -bound), bound);
    if (__any_sync(0xffffffffu, low == 0.0f)) {
      const uint32_t lanes = group > 2 * kRun ? 4 : group > kRun ? 2 : 1;
      const float zero =
          FirstZero<kCount, kPlanes>(y, half, first, first + planes, lanes, bound == 0.0f);
      if (low == 0.0f) low = zero;
    }
    *bounded = __all_sync(0xffffffffu, Bounded(low, high));
    return *bounded ? AffineOf<true>(low, high, kTop) : AffineOf<false>(low, high, kTop);
  }

  template <bool kReciprocal>
  __device__ static void Codes(const uint32_t (&y)[kCount], int half, int plane,
                               const Affine& affine, float bound, uint32_t (&words)[kWords]) {
    const float r = Reciprocal<kReciprocal>(affine.scale);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v = HalfOf(y[plane * kRun + 4 * w + i], half);
        v = fminf(fmaxf(v, -bound), bound);
        const float code = fminf(fmaxf(CodeValue<kReciprocal>(v, affine, r), 0.0f), kTop + 0.5f);
        words[w] |= static_cast<uint32_t>(code) << (8 * i + (8 / kPlanes) * plane);
      }
    }
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_AFFINE_CUH_
