// The range that a crumb row starts from, and the grids of stored scales and zeros. Each lane has a
// row of its own in shared memory: BF16 before Fit, after it FP16 times a power of two, which is
// exact but for elements below 2^-18 of the row's largest. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_

#include <cuda_fp16.h>

#include "gpu/codec/cuda_affine.cuh"
#include "gpu/codec/cuda_crumb_rows.cuh"

namespace crumb::cuda {

template <int kBits>
struct CrumbLevelGrid {
  static constexpr float kTop = (1 << kBits) - 1;
  static constexpr float kMid = kTop / 2;
  static constexpr float kStep = (1 << kBits) / 128.0f;
};

// Adding this to a small number leaves the nearest integer, ties to even, in the last place.
inline constexpr float kRounder = 0x1.8p23f;
inline constexpr uint32_t kRounderBits = 0x4b400000u;

struct StoredScale {
  uint32_t index;
  float value;
  bool clamped;
};

// 2^((index - 160) / 16), the constants of the format: exp2 of a fraction is within a unit of the
// last place of them, and what is stored is the index.
__device__ __forceinline__ StoredScale StoreScale(const float* scales, float scale) {
  const float index = rintf(fmaf(__log2f(scale), 16.0f, 160.0f));
  const float kept = fminf(fmaxf(index, 0.0f), 255.0f);
  const auto byte = static_cast<uint32_t>(kept);
  return {byte, __ldg(scales + byte), kept != index};
}

template <int kBits>
__device__ __forceinline__ StoredScale StoreZero(float zero) {
  using Grid = CrumbLevelGrid<kBits>;
  const float index = rintf((zero - Grid::kMid) * (1.0f / Grid::kStep)) + 64.0f;
  const float kept = fminf(fmaxf(index, 0.0f), 127.0f);
  return {static_cast<uint32_t>(kept), fmaf(kept - 64.0f, Grid::kStep, Grid::kMid), kept != index};
}

// A row's search so far. Lengths are in units of 2^exponent, the row's own.
struct CrumbFit {
  float unit;   // 2^exponent; 0: a row of zeros
  float scale;  // of the best range, in units
  float zero;
  float sum;      // of the elements, in units
  float energy;   // of their squares
  bool finite;    // no NaN, no infinity
  bool ordinary;  // largest magnitude within 2^-40 and 2^40, or zero: else nothing stored fits it
  bool large;     // beyond 2^40, or not finite
};

// Both halves times those of `by`.
__device__ __forceinline__ uint32_t TimesBf16(uint32_t a, uint32_t by) {
  uint32_t out;
  // WHY a sum with -0: not every architecture has the product alone.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(by), "r"(0x80008000u));
  return out;
}
__device__ __forceinline__ uint32_t PackHalf(float low, float high) {
  uint32_t out;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ __half2 AsHalf2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

template <int kDim, int kBits>
struct CrumbRange {
  using Grid = CrumbLevelGrid<kBits>;
  static constexpr int kSteps = 6;  // 1, .9, .8, .7 of the range, for V also .6 and .5
  static constexpr float Shrink(int step) { return 1.0f - 0.1f * static_cast<float>(step); }

  struct Extremes {
    float low, high;
  };
  __device__ static Extremes ExtremesOf(uint32_t row) {
    uint32_t low = FromShared<uint32_t>(row), high = low;
#pragma unroll
    for (int i = 0; i < kDim; i += 8) {
      const auto w = FromShared<uint4>(row + 2 * i);
      low = MinBf16OrNan(MinBf16OrNan(MinBf16OrNan(low, w.x), MinBf16OrNan(w.y, w.z)), w.w);
      high = MaxBf16OrNan(MaxBf16OrNan(MaxBf16OrNan(high, w.x), MaxBf16OrNan(w.y, w.z)), w.w);
    }
    low = MinBf16OrNan(low, low >> 16 | low << 16);
    high = MaxBf16OrNan(high, high >> 16 | high << 16);
    return {LowBf16(low), LowBf16(high)};
  }

  // Distance to the nearest level from the middle of them, in steps: folded at the middle, at the
  // middle of what is left, and so on.
  __device__ static __half2 Distance(__half2 v) {
    if constexpr (kBits == 4) v = __hadd2(__habs2(v), __float2half2_rn(-4.0f));
    if constexpr (kBits >= 3) v = __hadd2(__habs2(v), __float2half2_rn(-2.0f));
    v = __hadd2(__habs2(v), __float2half2_rn(-1.0f));
    return __hadd2(__habs2(v), __float2half2_rn(-0.5f));
  }

  // What a row starts from. `down`: 1 / fit.unit, or 0; `inverse`: steps in a unit.
  struct Start {
    CrumbFit fit;
    float down, inverse;
  };
  __device__ static Start StartOf(Extremes ends) {
    Start out = {};
    CrumbFit& fit = out.fit;
    const float peak = fmaxf(fabsf(ends.low), fabsf(ends.high));
    fit.finite = fabsf(ends.low) <= 3.4e38f && fabsf(ends.high) <= 3.4e38f;
    const bool zeros = fit.finite && peak == 0.0f;
    fit.ordinary = fit.finite && (zeros || (peak >= 0x1p-40f && peak <= 0x1p40f));
    fit.large = !(peak <= 0x1p40f);
    fit.zero = 0.0f, fit.scale = 1.0f;
    if (!fit.ordinary || zeros) return out;
    // The largest magnitude becomes 2^4 or up to twice that: FP16 has room for squares, and for
    // elements 2^-18 of it.
    fit.unit = __uint_as_float((__float_as_uint(peak) & 0x7f800000u) - (4u << 23));
    out.down = __uint_as_float(0x7f000000u - __float_as_uint(fit.unit));
    float low = ends.low * out.down, high = ends.high * out.down;
    // A constant row has no range; with zero in it the row is one of the levels.
    if (low == high) low = fminf(low, 0.0f), high = fmaxf(high, 0.0f);
    const float range = high - low;
    fit.scale = range * (1.0f / Grid::kTop);
    fit.zero = -Grid::kTop * low / range;
    out.inverse = __fdividef(Grid::kTop, range);
    return out;
  }

  // Of the first `ranges`, the one with the least error becomes the fit's scale.
  __device__ static void Choose(int ranges, const float (&errors)[kSteps], CrumbFit* fit) {
    float least = errors[0], factor = 1.0f;
#pragma unroll
    for (int k = 1; k < kSteps; ++k) {
      if (k >= ranges) continue;
      const float error = errors[k] * Shrink(k) * Shrink(k);
      if (error < least) least = error, factor = Shrink(k);
    }
    fit->scale *= factor;
  }

  // REQUIRES: the row is BF16 in shared memory. `ranges` is 1 (effort draft) or 4. kSearch: 4, and
  // the plain gain is not wanted.
  template <bool kSearch>
  __device__ static CrumbFit Find(uint32_t row, int ranges) {
    Start start = StartOf(ExtremesOf(row));
    float errors[kSteps] = {};
    if constexpr (kSearch) {
      Pass<4, false>(row, start, &start.fit, errors);
    } else if (ranges == 1) {
      Pass<1, true>(row, start, &start.fit, errors);
    } else {
      Pass<4, true>(row, start, &start.fit, errors);
    }
    Choose(ranges, errors, &start.fit);
    return start.fit;
  }

 private:
  // Makes the row FP16 and sums what the gain needs; errors of ranges into `errors`.
  template <int kRanges, bool kSums>
  __device__ static void Pass(uint32_t row, const Start& start, CrumbFit* fit,
                              float (&errors)[kSteps]) {
    __half2 inverses[kSteps], sums[kSteps];
    const uint32_t down = PackBf16(start.down, start.down);
    const __half2 shift = __float2half2_rn(start.fit.zero - Grid::kMid);
#pragma unroll
    for (int k = 0; k < kRanges; ++k) {
      inverses[k] = __float2half2_rn(start.inverse * (1.0f / Shrink(k)));
    }
#pragma unroll 1
    for (int i = 0; i < kDim; i += 16) {
      uint4 words[2] = {FromShared<uint4>(row + 2 * i), FromShared<uint4>(row + 2 * i + 16)};
      auto* w = reinterpret_cast<uint32_t*>(words);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t scaled = TimesBf16(w[j], down);
        const float low = LowBf16(scaled), high = HighBf16(scaled);
        if constexpr (kSums) {
          fit->sum += low, fit->sum += high;
          fit->energy = fmaf(low, low, fit->energy), fit->energy = fmaf(high, high, fit->energy);
        }
        w[j] = PackHalf(low, high);
        if constexpr (kRanges > 1) {
#pragma unroll
          for (int k = 0; k < kRanges; ++k) {
            const __half2 x = Distance(__hfma2(AsHalf2(w[j]), inverses[k], shift));
            sums[k] = j == 0 ? __hmul2(x, x) : __hfma2(x, x, sums[k]);
          }
        }
      }
      ToShared(row + 2 * i, words[0]);
      ToShared(row + 2 * i + 16, words[1]);
      if constexpr (kRanges > 1) {
#pragma unroll
        for (int k = 0; k < kRanges; ++k) {
          errors[k] += __low2float(sums[k]) + __high2float(sums[k]);
        }
      }
    }
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_
