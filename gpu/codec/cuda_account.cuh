// What an encode says of pages: NaN and infinities, rows that do not fit, and, from every 32nd
// tile, squared errors. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_ACCOUNT_CUH_
#define CRUMB_GPU_CODEC_CUDA_ACCOUNT_CUH_

#include "gpu/codec/cuda_affine.cuh"
#include "gpu/codec/cuda_gather.cuh"

namespace crumb::cuda {

inline constexpr double kUnfitShare = 0.35;  // kRowErrorMax of page_codec.h
inline constexpr uint32_t kSampledTiles = 32;

// WHY whole tiles: its four warps wait for each other at the next product. WHY the multiplication:
// a warp walks in steps that divide by the number of heads, and some would have all the samples.
__device__ __forceinline__ bool Sampled(const WarpRows& rows, uint32_t tensor) {
  const uint32_t turn = (rows.page * 64 + tensor / 2) * 0x9e3779b1u >> 27;
  return (rows.first / kCudaTileRows + rows.head + turn) % kSampledTiles == 0;
}

// The first such row of a page is kept.
__device__ __forceinline__ void ReportBadRow(CudaPageReport* report, uint32_t tensor, uint32_t head,
                                             uint32_t row) {
  atomicMin(&report->bad_place, static_cast<unsigned long long>(tensor) << 40 |
                                    static_cast<unsigned long long>(head) << 20 | row);
}

// A sum that is not finite comes from a NaN or an infinity in the row, or from a finite row that
// does not fit into BF16 once rotated. Every lane has the same two rows as its quad.
template <int kDim>
__device__ __forceinline__ void ReportRows(CudaPageReport* report, const RowWalk& walk,
                                           const WarpRows& rows, uint32_t tensor, uint32_t finite) {
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = rows.first + LaneRow() + 8 * half;
    const bool look = rows.Has(half);
    // Lanes without a row look at the warp's first one, so that all take part.
    const bool bad = RowHasNonFinite<kDim>(walk.RawRow(rows, look ? LaneRow() + 8 * half : 0));
    if (!look || (finite >> half & 1) != 0 || LaneColumn() != 0) continue;
    if (bad) {
      ReportBadRow(report, tensor, rows.head, row);
    } else {
      atomicAdd(&report->unfit, 1u);
    }
  }
}

// A pair as a reader will see it.
__device__ __forceinline__ Affine Stored(bool bf16_meta, Affine affine) {
  if (!bf16_meta) return affine;
  const uint32_t pair = PackBf16(affine.scale, affine.zero);
  affine.scale = LowBf16(pair), affine.zero = HighBf16(pair);
  return affine;
}

// Squared error as a reader will see it, and energy, over one plane of a lane's elements.
template <int kCount, int kBits, int kWords, typename Sum>
__device__ __forceinline__ void AddErrors(const uint32_t (&y)[kCount], int half, int plane,
                                          const uint32_t (&words)[kWords], const Affine& stored,
                                          Sum* error, Sum* energy) {
  constexpr int kPlanes = kBits == 4 ? 2 : 4, kRun = kCount / kPlanes;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const uint32_t code = words[i / 4] >> (8 * (i % 4) + 8 / kPlanes * plane) & ((1 << kBits) - 1);
    const float level = __fmul_rn(__fsub_rn(static_cast<float>(code), stored.zero), stored.scale);
    const Sum v = HalfOf(y[plane * kRun + i], half);
    const Sum e = v - static_cast<Sum>(LowBf16(PackBf16(level, 0.0f)));
    *error += e * e;
    *energy += v * v;
  }
}

// The sums of eight rows, a quarter row by each lane, to those of the page.
__device__ __forceinline__ void AddSample(bool has, float error, float energy, int kind,
                                          CudaPageReport* report) {
  if (!has) error = energy = 0.0f;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    error += __shfl_xor_sync(0xffffffffu, error, step);
    energy += __shfl_xor_sync(0xffffffffu, energy, step);
  }
  const uint32_t count = static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, has))) / 4;
  if (Lane() != 0 || count == 0) return;
  atomicAdd(&report->rows[kind], count);
  atomicAdd(&report->error[kind], error);
  atomicAdd(&report->energy[kind], energy);
}

// A row whose range is below the published floor is unfit where that erased it. In double: squares
// of such values may be below what FP32 has.
__device__ __forceinline__ void CountUnfit(bool has, bool floored, double error, double energy,
                                           CudaPageReport* report) {
  int any = floored ? 1 : 0;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    error += __shfl_xor_sync(0xffffffffu, error, step);
    energy += __shfl_xor_sync(0xffffffffu, energy, step);
    any |= __shfl_xor_sync(0xffffffffu, any, step);
  }
  if (any == 0 || !has || LaneColumn() != 0) return;
  if (error > kUnfitShare * energy) atomicAdd(&report->unfit, 1u);
}

// Rows of the page that do not exist are zero bytes, and so is what lies between sections.
__device__ __forceinline__ void ClearRest(uint32_t page_tokens, HeadsAt heads,
                                          const WarpRows& rows) {
  const uint32_t end = min(rows.first + kCudaRowsPerWarp, page_tokens);
  const uint32_t first = max(rows.first, rows.tokens);
  const uint32_t code = heads.code_row_bytes(), meta = heads.meta_row_bytes();
  const auto clear = [&](uint32_t from, uint32_t to) {
    for (uint32_t i = from + Lane(); i < to; i += 32) rows.block[i] = 0;
  };
  if (first < end) {
    clear(first * code, end * code);
    clear(heads.meta_offset() + first * meta, heads.meta_offset() + end * meta);
  }
  if (end != page_tokens || rows.first >= end) return;
  clear(end * code, heads.meta_offset());
  clear(heads.meta_offset() + end * meta, heads.head_bytes());
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_ACCOUNT_CUH_
