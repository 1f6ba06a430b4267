// What a crumb encode says of pages: NaN and infinities, rows that do not fit, and, from every 32nd
// tile, squared errors. One row in each lane. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_ACCOUNT_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_ACCOUNT_CUH_

#include "gpu/codec/cuda_account.cuh"
#include "gpu/codec/cuda_crumb_codes.cuh"

namespace crumb::cuda {

// The same tiles as those of affine codecs.
__device__ __forceinline__ bool SampledRow(uint32_t page, uint32_t head, uint32_t row,
                                           uint32_t tensor) {
  WarpRows rows = {};
  rows.first = row, rows.page = page, rows.head = head;
  return Sampled(rows, tensor);
}

struct RawRow {
  float energy;
  bool finite;
};
// A row as it was put, by one lane.
template <uint32_t kDim>
__device__ __noinline__ RawRow LookAtRaw(uint64_t address) {
  RawRow out = {0.0f, true};
  const auto* from = reinterpret_cast<const uint16_t*>(address);
  for (uint32_t i = 0; i < kDim; ++i) {
    const float x = LowBf16(from[i]);
    out.energy = fmaf(x, x, out.energy);
    out.finite &= (from[i] & 0x7f80u) != 0x7f80u;
  }
  return out;
}

struct PlainErrors {
  float error, energy;
};
// Of this lane's row, as a decoder will see it: `scale` and `unit` in absolute terms.
template <int kDim, int kBits>
__device__ __noinline__ PlainErrors PlainErrorsOf(CrumbCodes<kDim, kBits> codes, float unit,
                                                  float scale, float zero) {
  PlainErrors out = {};
#pragma unroll 1
  for (uint32_t i = 0; i < kDim; ++i) {
    const float y = codes.ElementAt(i) * unit;
    const float level = __fmul_rn(__fsub_rn(static_cast<float>(codes.CodeAt(i)), zero), scale);
    const float e = y - LowBf16(PackBf16(level, 0.0f));
    out.error = fmaf(e, e, out.error);
    out.energy = fmaf(y, y, out.energy);
  }
  return out;
}

__device__ __forceinline__ void AddRowSample(CudaPageReport* report, uint32_t kind, float error,
                                             float energy) {
  atomicAdd(&report->rows[kind], 1u);
  atomicAdd(&report->error[kind], error);
  atomicAdd(&report->energy[kind], energy);
}

__device__ __forceinline__ void ReportBadRow(CudaPageReport* report, uint32_t tensor, uint32_t head,
                                             uint32_t row) {
  atomicMin(&report->bad_place, static_cast<unsigned long long>(tensor) << 40 |
                                    static_cast<unsigned long long>(head) << 20 | row);
}

// Rows past the page's tokens are zero bytes, and so is what lies between sections.
__device__ __forceinline__ void ClearUnit(uint32_t page_tokens, HeadsAt heads,
                                          const CrumbUnit& unit, uint32_t side_bytes) {
  const auto clear = [&](uint32_t from, uint32_t to) {
    for (uint32_t i = from + Lane(); i < to; i += 32) unit.block[i] = 0;
  };
  const uint32_t code = heads.code_row_bytes(), meta = heads.meta_row_bytes();
  clear(unit.tokens * code, heads.meta_offset());
  const uint32_t metas = heads.meta_offset() + unit.tokens * meta;
  if (!heads.has_side()) return clear(metas, heads.head_bytes());
  clear(metas, heads.side_offset());
  clear(heads.side_offset() + side_bytes, heads.head_bytes());
}

// The value that `rank` others are below, of `count` values that are not negative: bit by bit from
// the top. In shared memory; the whole warp.
__device__ __forceinline__ float ValueOfRank(uint32_t at, uint32_t count, uint32_t rank) {
  uint32_t value = 0;
#pragma unroll 1
  for (int bit = 30; bit >= 0; --bit) {
    const uint32_t trial = value | 1u << bit;
    uint32_t below = 0;
    for (uint32_t i = Lane(); i < count; i += 32) {
      below += FromShared<uint32_t>(at + 4 * i) < trial ? 1 : 0;
    }
    if (__reduce_add_sync(0xffffffffu, below) <= rank) value = trial;
  }
  return __uint_as_float(value);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_ACCOUNT_CUH_
