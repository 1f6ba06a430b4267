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
// The same, but a NaN stays one.
__device__ __forceinline__ uint32_t MaxBf16OrNan(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t MinBf16OrNan(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
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

inline __device__ __noinline__ Affine AffineOfAny(float low, float high, float top) {
  return AffineOf<false>(low, high, top);
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

// A bound below which no value or above which every value of a row lies is moved out of the reach
// of elements that the clip takes away, which get the codes of the ends. Only a row whose range met
// the floor has such bounds: others have code 0 at one end and 3 at the other.
__device__ __forceinline__ uint32_t MoveBound(uint32_t bound, float low, float high) {
  const float value = LowBf16(bound);
  return value > high ? 0x7f80u : value <= low ? 0xff80u : bound;
}

template <bool kReciprocal>
__device__ __forceinline__ RowBounds BoundsOf(float low, float high, bool upper) {
  RowBounds out;
  out.affine = AffineOf<kReciprocal>(low, high, 3.0f);
  const float r = Reciprocal<kReciprocal>(out.affine.scale);
  uint32_t first =
      CodeBound<kReciprocal>(upper ? 3.0f : 1.0f, upper ? 0x1p-23f : 0x1.8p-25f, out.affine, r);
  uint32_t second = CodeBound<kReciprocal>(2.0f, 0x1p-24f, out.affine, r);
  if (out.affine.floored)
    first = MoveBound(first, low, high), second = MoveBound(second, low, high);
  out.bounds = first | second << 16;
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
  v = MaxBf16OrNan(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return MaxBf16OrNan(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ uint32_t QuadMin(uint32_t v) {
  v = MinBf16OrNan(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return MinBf16OrNan(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ __forceinline__ uint32_t MultiplyAddF16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
__device__ __forceinline__ uint32_t MultiplyAddWithin01(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
// Three bounds of two rows, and comparisons with them. FP16 1.0 in each half of a result where the
// value reaches the bound.
struct Compare {  // any values
  uint32_t bound[3];
  template <int kBound>
  __device__ uint32_t Reached(uint32_t v) const {
    return NotBelow(v, bound[kBound]) & 0x3c003c00u;
  }
};

// By saturating multiplication, on another pipe than comparisons and selection. WHY it is right:
// below 2^121 BF16 patterns are in order as FP16 too, and v reaches a bound if it is above the
// value before it, `below`. (v - below) x 2^s, rounded once, is 1 or more then, and 0 or less
// otherwise, if a step at `below` is at least 2^-s and below x 2^s is finite.
struct CompareByProducts {
  static constexpr uint32_t kPower13 = 0x70007000u;  // 2^13 in both halves
  uint32_t power2, minus[3];

  // Both halves: the values before a pair of bounds, and whether the scheme holds for them: the low
  // one (bounds 1 and 3) is scaled by 2^13, the high one (bound 2) by what its exponent asks for,
  // since it lies near zero.
  __device__ static uint32_t Below(uint32_t bounds) {
    return bounds - 0x00010001u + (bounds >> 15 & 0x00010001u) * 2;
  }
  __device__ static bool Holds(uint32_t below) {
    const uint32_t outer = (below & 0x7fffu) - 0x3400u;
    const uint32_t middle = (below >> 16 & 0x7fffu) - 0x2c00u;
    return outer < 0x4800u - 0x3400u && middle < 0x7000u - 0x2c00u;
  }
  __device__ CompareByProducts(uint32_t below1, uint32_t below2, uint32_t below3) {
    // 2^(11 - e) of both halves; exponents are biased by 15.
    power2 = (0x00290029u - (below2 >> 10 & 0x001f001fu)) << 10;
    minus[0] = MultiplyAddF16(below1 ^ 0x80008000u, kPower13, 0);
    minus[1] = MultiplyAddF16(below2 ^ 0x80008000u, power2, 0);
    minus[2] = MultiplyAddF16(below3 ^ 0x80008000u, kPower13, 0);
  }
  template <int kBound>
  __device__ uint32_t Reached(uint32_t v) const {
    return MultiplyAddWithin01(v, kBound == 1 ? power2 : kPower13, minus[kBound]);
  }
};

// Sums ones to bytes of codes on the tensor cores: the product with powers of four that a lane's
// own columns alone have. Element 0 and 1 of a word come back as 16 bits of one sum, 2 and 3 of
// another, for both rows.
class CodeSums {
 public:
  __device__ CodeSums() {
    const uint32_t g = LaneRow(), c = LaneColumn();
    one_ = g == 2 * c ? 0x00003c00u : g == 2 * c + 1 ? 0x3c000000u : 0u;
    step_ = one_ == 0 ? 0u : g == 2 * c ? 0x00000800u : 0x08000000u;  // of 4, as exponents go
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[i] = 8388608.0f;
  }

  // Ones of elements 0 to 3 of `plane`, pairs of rows.
  __device__ void Add(int plane, const uint32_t (&ones)[4]) {
    const uint32_t b0 = one_ + plane * step_, b1 = one_ + (plane + 4) * step_;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(sums_[0]), "+f"(sums_[1]), "+f"(sums_[2]), "+f"(sums_[3])
        : "r"(ones[0]), "r"(ones[2]), "r"(ones[1]), "r"(ones[3]), "r"(b0), "r"(b1));
  }

  __device__ uint32_t Word(int half) const {
    return __byte_perm(__float_as_uint(sums_[half]), __float_as_uint(sums_[2 + half]), 0x5410);
  }

 private:
  uint32_t one_, step_;
  float sums_[4];
};

template <int kCount, typename Bounds>
__device__ __forceinline__ void CodesByBounds(const uint32_t (&y)[kCount], const Bounds& bounds,
                                              uint32_t (&words)[2][kCount / 16]) {
  constexpr int kWords = kCount / 16;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    CodeSums sums;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      uint32_t ones[3][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t v = y[(p * kWords + w) * 4 + i];
        ones[0][i] = bounds.template Reached<0>(v);
        ones[1][i] = bounds.template Reached<1>(v);
        ones[2][i] = bounds.template Reached<2>(v);
      }
      sums.Add(p, ones[0]);
      sums.Add(p, ones[1]);
      sums.Add(p, ones[2]);
    }
    words[0][w] = sums.Word(0), words[1][w] = sums.Word(1);
  }
}

// Two bits, one scale for the row: codes of both rows in words as they are stored, by bounds.
// `small`: no magnitude of the warp's rows reaches 2^60, whatever the clip makes of it.
// Each lane works out the affine pair of one row (g + 8 * (c & 1)) and returns it.
template <int kCount>
__device__ __forceinline__ Affine QuantiseByBounds(const uint32_t (&y)[kCount], uint32_t low,
                                                   uint32_t high, bool small,
                                                   uint32_t (&words)[2][kCount / 16]) {
  const uint32_t c = LaneColumn(), first = Lane() & 28;
  const float least = HalfOf(low, c & 1), most = HalfOf(high, c & 1);
  const bool upper = (c & 2) != 0;
  const RowBounds own =
      small ? BoundsOf<true>(least, most, upper) : BoundsOfAny(least, most, upper);
  const uint32_t below = CompareByProducts::Below(own.bounds);
  const bool products = __all_sync(0xffffffffu, small && CompareByProducts::Holds(below));
  const uint32_t both = products ? below : own.bounds;
  const uint32_t low_g = __shfl_sync(0xffffffffu, both, first);
  const uint32_t low_h = __shfl_sync(0xffffffffu, both, first + 1);
  const uint32_t top_g = __shfl_sync(0xffffffffu, both, first + 2);
  const uint32_t top_h = __shfl_sync(0xffffffffu, both, first + 3);
  const uint32_t bound1 = __byte_perm(low_g, low_h, 0x5410);
  const uint32_t bound2 = __byte_perm(low_g, low_h, 0x7632);
  const uint32_t bound3 = __byte_perm(top_g, top_h, 0x5410);
  if (products) {
    CodesByBounds<kCount>(y, CompareByProducts(bound1, bound2, bound3), words);
  } else {
    CodesByBounds<kCount>(y, Compare{{bound1, bound2, bound3}}, words);
  }
  return own.affine;
}

// 2^23 + the integer below `value`, in 0 to 255: the low byte is that integer.
__device__ __forceinline__ float FloorByte(float value) { return __fadd_rd(value, 8388608.0f); }

// Four bits, one scale for the row.
template <int kCount>
struct RowQuantiser4 {
  static constexpr int kWords = kCount / 8;

  // Of both rows. kReciprocal: as Divide's. kClips: elements are clipped to `bound`.
  template <bool kReciprocal, bool kClips>
  __device__ static void Codes(const uint32_t (&y)[kCount], uint32_t bound,
                               const Affine (&affine)[2], uint32_t (&words)[2][kWords]) {
    const float r[2] = {Reciprocal<kReciprocal>(affine[0].scale),
                        Reciprocal<kReciprocal>(affine[1].scale)};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t bytes[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t low = y[4 * w + i], high = y[kCount / 2 + 4 * w + i];
        if constexpr (kClips) {
          low = MinBf16(MaxBf16(low, bound ^ 0x80008000u), bound);
          high = MinBf16(MaxBf16(high, bound ^ 0x80008000u), bound);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Between 0 and 16 already: what was not clipped lies between the ends of the range.
          const float of_low = CodeValue<kReciprocal>(HalfOf(low, half), affine[half], r[half]);
          const float of_high = CodeValue<kReciprocal>(HalfOf(high, half), affine[half], r[half]);
          bytes[half][i] =
              __float_as_uint(fmaf(FloorByte(of_high) - 8388608.0f, 16.0f, FloorByte(of_low)));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[half][w] = __byte_perm(__byte_perm(bytes[half][0], bytes[half][1], 0x0040),
                                     __byte_perm(bytes[half][2], bytes[half][3], 0x0040), 0x5410);
      }
    }
  }
};

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
        words[w] |= (__float_as_uint(FloorByte(code)) & 0xffu) << (8 * i + (8 / kPlanes) * plane);
      }
    }
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_AFFINE_CUH_
