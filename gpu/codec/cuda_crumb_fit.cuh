// The range that a crumb row starts from, and the grids of stored scales and zeros. Each lane has a
// row of its own in shared memory: BF16 before Fit, after it FP16 times a power of two, which is
// exact but for elements below 2^-22 of the row's largest. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_

#include <cuda_fp16.h>

#include "gpu/codec/cuda_crumb_rows.cuh"

namespace crumb::cuda {

template <int kBits>
struct CrumbLevelGrid {
  static constexpr float kTop = (1 << kBits) - 1;
  static constexpr float kMid = kTop / 2;
  static constexpr float kStep = (1 << kBits) / 128.0f;
};

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

// WHY min and max that keep a NaN: it must be seen.
__device__ __forceinline__ uint32_t MaxOrNan(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t MinOrNan(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

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

  struct Extremes {
    float low, high;
  };
  __device__ static Extremes ExtremesOf(uint32_t row) {
    uint32_t low = FromShared<uint32_t>(row), high = low;
#pragma unroll
    for (int i = 0; i < kDim; i += 8) {
      const auto w = FromShared<uint4>(row + 2 * i);
      low = MinOrNan(MinOrNan(MinOrNan(low, w.x), MinOrNan(w.y, w.z)), w.w);
      high = MaxOrNan(MaxOrNan(MaxOrNan(high, w.x), MaxOrNan(w.y, w.z)), w.w);
    }
    low = MinOrNan(low, low >> 16 | low << 16);
    high = MaxOrNan(high, high >> 16 | high << 16);
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

  __device__ static float Distance(float v) {
    if constexpr (kBits == 4) v = fabsf(v) - 4.0f;
    if constexpr (kBits >= 3) v = fabsf(v) - 2.0f;
    return fabsf(fabsf(v) - 1.0f) - 0.5f;
  }

  // Makes the row FP16 and sums what the gain needs; errors of ranges into `errors`. The first
  // kExact ranges go by FP32. WHY not all by FP16, two at a time: its instructions have half of the
  // pipes, so that a third of them done as FP32 leaves none idle.
  template <int kRanges, bool kSums>
  __device__ static void Pass(uint32_t row, uint32_t down, float inverse, float offset, CrumbFit* fit,
                              float (&errors)[kSteps]) {
    constexpr int kExact = kRanges == 6 ? 2 : 0;
    float exact[kSteps];
    __half2 inverses[kSteps], sums[kSteps];
    const __half2 shift = __float2half2_rn(offset);
#pragma unroll
    for (int k = 0; k < kRanges; ++k) {
      exact[k] = inverse * (1.0f / (1.0f - 0.1f * static_cast<float>(k)));
      inverses[k] = __float2half2_rn(exact[k]);
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
          for (int k = 0; k < kExact; ++k) {
            const float x = Distance(fmaf(low, exact[k], offset));
            const float y = Distance(fmaf(high, exact[k], offset));
            errors[k] = fmaf(x, x, errors[k]);
            errors[k] = fmaf(y, y, errors[k]);
          }
#pragma unroll
          for (int k = kExact; k < kRanges; ++k) {
            const __half2 x = Distance(__hfma2(AsHalf2(w[j]), inverses[k], shift));
            sums[k] = j == 0 ? __hmul2(x, x) : __hfma2(x, x, sums[k]);
          }
        }
      }
      ToShared(row + 2 * i, words[0]);
      ToShared(row + 2 * i + 16, words[1]);
      if constexpr (kRanges > 1) {
#pragma unroll
        for (int k = kExact; k < kRanges; ++k) {
          errors[k] += __low2float(sums[k]) + __high2float(sums[k]);
        }
      }
    }
  }

  // REQUIRES: the row is BF16 in shared memory. `ranges` is 1 (effort draft), 4 (K) or 6 (V).
  // kSearch: 4, and the plain gain is not wanted.
  template <bool kSearch>
  __device__ static CrumbFit Find(uint32_t row, int ranges) {
    const Extremes ends = ExtremesOf(row);
    const float peak = fmaxf(fabsf(ends.low), fabsf(ends.high));
    CrumbFit fit = {};
    fit.finite = fabsf(ends.low) <= 3.4e38f && fabsf(ends.high) <= 3.4e38f;
    const bool zeros = fit.finite && peak == 0.0f;
    fit.ordinary = fit.finite && (zeros || (peak >= 0x1p-40f && peak <= 0x1p40f));
    fit.large = !(peak <= 0x1p40f);
    if (!fit.ordinary || zeros) {
      fit.unit = 0.0f;
    } else {
      // The largest magnitude becomes 2^8 or up to twice that.
      fit.unit = __uint_as_float((__float_as_uint(peak) & 0x7f800000u) - (8u << 23));
    }
    const float down =
        fit.unit == 0.0f ? 0.0f : __uint_as_float(0x7f000000u - __float_as_uint(fit.unit));
    float low = ends.low * down, high = ends.high * down;
    // A constant row has no range; with zero in it the row is one of the levels.
    if (low == high) low = fminf(low, 0.0f), high = fmaxf(high, 0.0f);
    const float range = fit.unit == 0.0f ? Grid::kTop : high - low;
    const float per_range = __fdividef(1.0f, range);
    fit.scale = range * (1.0f / Grid::kTop);
    fit.zero = fit.unit == 0.0f ? 0.0f : -Grid::kTop * low / range;
    float errors[kSteps] = {};
    const uint32_t twice = PackBf16(down, down);
    const float inverse = Grid::kTop * per_range, offset = fit.zero - Grid::kMid;
    if constexpr (kSearch) {
      Pass<4, false>(row, twice, inverse, offset, &fit, errors);
    } else if (ranges == 1) {
      Pass<1, true>(row, twice, inverse, offset, &fit, errors);
    } else if (ranges == 4) {
      Pass<4, true>(row, twice, inverse, offset, &fit, errors);
    } else {
      Pass<6, true>(row, twice, inverse, offset, &fit, errors);
    }
    Choose(ranges, errors, &fit);
    return fit;
  }

 private:
  __device__ static void Choose(int ranges, const float (&errors)[kSteps], CrumbFit* fit) {
    float least = errors[0], factor = 1.0f;
#pragma unroll
    for (int k = 1; k < kSteps; ++k) {
      if (k >= ranges) continue;
      const float shrink = 1.0f - 0.1f * static_cast<float>(k);
      const float error = errors[k] * shrink * shrink;
      if (error < least) least = error, factor = shrink;
    }
    fit->scale *= factor;
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_FIT_CUH_
