// The k-th largest magnitude of a row, exactly: comparator networks on pairs of 16-bit patterns
// (row g in the low half, row g + 8 in the high), a quarter of a row per lane, four lanes together.
// WHY networks: they need no counting, and each comparator serves two rows. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_SELECT_CUH_
#define CRUMB_GPU_CODEC_CUDA_SELECT_CUH_

#include <cstdint>

namespace crumb::cuda {

__device__ __forceinline__ void Exchange(uint32_t& larger, uint32_t& smaller) {
  const uint32_t most = __vmaxu2(larger, smaller);
  smaller = __vminu2(larger, smaller);
  larger = most;
}

// The same of magnitudes, signs dropped on the way: as FP16, whose order is that of the patterns
// below 0x7c00. WHY not as BF16: dropping its signs takes instructions.
__device__ __forceinline__ void ExchangeMagnitudes(uint32_t a, uint32_t b, uint32_t* larger,
                                                   uint32_t* smaller) {
  asm("{\n.reg .b32 x, y;\nabs.f16x2 x, %2;\nabs.f16x2 y, %3;\n"
      "max.f16x2 %0, x, y;\nmin.f16x2 %1, x, y;\n}\n"
      : "=r"(*larger), "=r"(*smaller)
      : "r"(a), "r"(b));
}

// Sorts a "valley" (falling, then rising; any length) to falling order: the bitonic merger of the
// next power of two, whose missing elements stand at the end as the largest there are.
template <int kCount>
__device__ __forceinline__ void SortValley(uint32_t* a) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount <= 2    ? 1
                          : kCount <= 4  ? 2
                          : kCount <= 8  ? 4
                          : kCount <= 16 ? 8
                                         : 16;
    constexpr int kFirst = kCount - kHalf;
    // Element i meets i + kHalf; what has no partner meets the largest and moves to the front part.
    uint32_t rest[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (i < kFirst) {
        Exchange(a[i], a[i + kHalf]);
        rest[i] = a[i + kHalf];
      } else {
        rest[i] = a[i];
      }
    }
    SortValley<kFirst>(a);
    SortValley<kHalf>(rest);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) a[kFirst + i] = rest[i];
  }
}

// Batcher's odd-even merge of two falling lists of kCount / 2 (a power of two).
template <int kCount>
__device__ __forceinline__ void MergeAll(uint32_t* a) {
  constexpr int kHalf = kCount / 2;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) Exchange(a[i], a[i + kHalf]);
#pragma unroll
  for (int step = kHalf / 2; step > 0; step /= 2) {
#pragma unroll
    for (int first = step; first < kCount - step; first += 2 * step) {
#pragma unroll
      for (int i = 0; i < step; ++i) Exchange(a[first + i], a[first + step + i]);
    }
  }
}

// a becomes the kKeep largest of two falling lists of kKeep, falling.
template <int kKeep>
__device__ __forceinline__ void MergeTop(uint32_t* a, const uint32_t* b) {
#pragma unroll
  for (int i = 0; i < kKeep; ++i) a[i] = __vmaxu2(a[i], b[kKeep - 1 - i]);
  SortValley<kKeep>(a);
}

// The min(kCount, kKeep) largest of kCount values (a power of two) to the front, falling; pairs of
// neighbours are in order already.
template <int kCount, int kKeep>
__device__ __forceinline__ void TopOf(uint32_t* a) {
  if constexpr (kCount > 2) {
    constexpr int kHalf = kCount / 2;
    TopOf<kHalf, kKeep>(a);
    TopOf<kHalf, kKeep>(a + kHalf);
    if constexpr (kCount <= kKeep) {
      MergeAll<kCount>(a);
    } else if constexpr (kHalf >= kKeep) {
      MergeTop<kKeep>(a, a + kHalf);
    } else {
      // Two whole lists, together longer than what is kept: only pairs that may be kept meet.
      uint32_t top[kKeep];
#pragma unroll
      for (int i = 0; i < kKeep; ++i) {
        const int j = kKeep - 1 - i;
        if (i >= kHalf)
          top[i] = a[kHalf + j];
        else if (j >= kHalf)
          top[i] = a[i];
        else
          top[i] = __vmaxu2(a[i], a[kHalf + j]);
      }
      SortValley<kKeep>(top);
#pragma unroll
      for (int i = 0; i < kKeep; ++i) a[i] = top[i];
    }
  }
}

// The kRank largest of two falling lists of kKeep, falling, to the front of `out`.
template <int kRank, int kKeep>
__device__ __forceinline__ void MergeKept(const uint32_t* a, const uint32_t* b, uint32_t* out) {
  static_assert(kKeep <= kRank && kRank <= 2 * kKeep);
#pragma unroll
  for (int i = 0; i < kRank; ++i) {
    const int j = kRank - 1 - i;
    out[i] = i >= kKeep ? b[j] : j >= kKeep ? a[i] : __vmaxu2(a[i], b[j]);
  }
  SortValley<kRank>(out);
}

// The kRank-th largest magnitude (1 = the largest) of both rows, if no lane has more than kKeep of
// those above it; *exact says so. WHY fewer than kRank: lists of four lanes rarely hold so many of
// the largest in one, and shorter ones take a third less.
template <int kCount, int kRank, int kKeep>
__device__ __forceinline__ uint32_t SelectByNetwork(const uint32_t (&y)[kCount], bool* exact) {
  static_assert(kRank > 1 && kRank <= kCount);
  uint32_t p[kCount];
#pragma unroll
  for (int i = 0; i < kCount; i += 2) ExchangeMagnitudes(y[i], y[i + 1], &p[i], &p[i + 1]);
  TopOf<kCount, kKeep>(p);
  const uint32_t least_kept = p[kKeep - 1];
  uint32_t other[kRank], top[kRank];
#pragma unroll
  for (int i = 0; i < kKeep; ++i) other[i] = __shfl_xor_sync(0xffffffffu, p[i], 1);
  MergeKept<kRank, kKeep>(p, other, top);
#pragma unroll
  for (int i = 0; i < kRank; ++i) other[i] = __shfl_xor_sync(0xffffffffu, top[i], 2);
  uint32_t least = __vmaxu2(top[0], other[kRank - 1]);
#pragma unroll
  for (int i = 1; i < kRank; ++i) least = __vminu2(least, __vmaxu2(top[i], other[kRank - 1 - i]));
  *exact = kKeep >= kRank || __all_sync(0xffffffffu, __vmaxu2(least_kept, least) == least);
  return least;
}

// Any rank: fifteen halvings of the range of patterns, counting.
template <int kCount>
__device__ __forceinline__ uint32_t SelectByHalving(const uint32_t (&p)[kCount], uint32_t rank) {
  uint32_t found = 0;  // the largest pattern that at least `rank` values reach, bit by bit
#pragma unroll 1
  for (int bit = 14; bit >= 0; --bit) {
    const uint32_t low = (found & 0xffffu) | 1u << bit;
    const uint32_t high = found >> 16 | 1u << bit;
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      count += ((p[i] & 0xffffu) >= low ? 1u : 0u) + (p[i] >> 16 >= high ? 0x10000u : 0u);
    }
    count += __shfl_xor_sync(0xffffffffu, count, 1);
    count += __shfl_xor_sync(0xffffffffu, count, 2);
    if ((count & 0xffffu) >= rank) found |= 1u << bit;
    if (count >> 16 >= rank) found |= 0x10000u << bit;
  }
  return found;
}

template <int kCount, int kRank, int kKeep>
__device__ __forceinline__ uint32_t SelectRank(const uint32_t (&y)[kCount]) {
  bool exact = true;
  const uint32_t found = SelectByNetwork<kCount, kRank, kKeep>(y, &exact);
  return exact ? found : SelectByNetwork<kCount, kRank, kRank>(y, &exact);
}

// `rank` is the same in the whole warp. The published clips have networks: 0.96 and 0.92 of 64,
// 128 and 256 elements. `small`: no magnitude of the warp's rows reaches 2^60.
template <int kCount>
__device__ __forceinline__ uint32_t Select(const uint32_t (&y)[kCount], uint32_t rank, bool small) {
  if constexpr (kCount == 16) {
    if (small && rank == 3) return SelectRank<kCount, 3, 3>(y);
    if (small && rank == 6) return SelectRank<kCount, 6, 5>(y);
  } else if constexpr (kCount == 32) {
    if (small && rank == 6) return SelectRank<kCount, 6, 5>(y);
    if (small && rank == 11) return SelectRank<kCount, 11, 8>(y);
  } else {
    if (small && rank == 11) return SelectRank<kCount, 11, 8>(y);
    if (small && rank == 21) return SelectRank<kCount, 21, 13>(y);
  }
  uint32_t p[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) p[i] = y[i] & 0x7fff7fffu;
  return SelectByHalving<kCount>(p, rank);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_SELECT_CUH_
