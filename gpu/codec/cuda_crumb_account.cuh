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
#pragma unroll 4
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
template <int kDim, int kBits, bool kSearch>
__device__ __noinline__ PlainErrors PlainErrorsOf(CrumbCodes<kDim, kBits, kSearch> codes,
                                                  float unit, float scale, float zero) {
  PlainErrors out = {};
#pragma unroll 1
  for (int b = 0; b < kDim / 16; ++b) {
    float y[16], code[16];
    codes.LoadBlock(b, y);
    codes.LoadCodes(b, code);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float own = y[i] * unit;
      const float level = __fmul_rn(__fsub_rn(code[i], zero), scale);
      const float e = own - LowBf16(PackBf16(level, 0.0f));
      out.error = fmaf(e, e, out.error);
      out.energy = fmaf(own, own, out.energy);
    }
  }
  return out;
}

// Rows past the page's tokens are zero bytes, and so is what lies between sections.
__device__ __forceinline__ void ClearUnit(HeadsAt heads, const CrumbUnit& unit,
                                          uint32_t side_bytes) {
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

// A bound for `count` values (in shared memory, none negative): those above it are more than twice
// their median, of rank count / 2, and no others. The whole warp. One is where more than half of
// all lie below half of it. WHY from the top first: few are. WHY not for ever: of some pages half
// are.
__device__ __forceinline__ float TwiceMedianBound(uint32_t at, uint32_t count) {
  constexpr int kFromTheTop = 8;
  const auto value_at = [&](uint32_t i) {
    return i < count ? FromShared<uint32_t>(at + 4 * i) : ~0u;
  };
  const uint32_t first = value_at(Lane()), second = value_at(Lane() + 32);
  const auto within = [&](uint32_t bits) {
    const uint32_t half = __float_as_uint(0.5f * __uint_as_float(bits));
    uint32_t below = __popc(__ballot_sync(0xffffffffu, first < half)) +
                     __popc(__ballot_sync(0xffffffffu, second < half));
    for (uint32_t i = 64; i < count; i += 32) {
      below += __popc(__ballot_sync(0xffffffffu, value_at(i + Lane()) < half));
    }
    return below <= count / 2;
  };
  uint32_t top = ~0u;
#pragma unroll 1
  for (int turn = 0; turn < kFromTheTop; ++turn) {
    uint32_t most = max(first < top ? first : 0, second < top ? second : 0);
    for (uint32_t i = 64; i < count; i += 32) {
      const uint32_t value = value_at(i + Lane());
      most = max(most, value < top ? value : 0);
    }
    top = __reduce_max_sync(0xffffffffu, most);
    if (within(top)) return __uint_as_float(top);
  }
  uint32_t bound = 0;
#pragma unroll 1
  for (int bit = 30; bit >= 0; --bit) {
    if (within(bound | 1u << bit)) bound |= 1u << bit;
  }
  return __uint_as_float(bound);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_ACCOUNT_CUH_
