// Packed rows to the operands of the inverse rotation: every code becomes its level in BF16, bit
// for bit as the reference. Device code of the kernels.
#ifndef CRUMB_GPU_CODEC_CUDA_UNPACK_CUH_
#define CRUMB_GPU_CODEC_CUDA_UNPACK_CUH_

#include "gpu/codec/cuda_rows.cuh"
#include "gpu/codec/cuda_tile.cuh"

namespace crumb::cuda {

// What one lane reads of its two rows.
template <int kDim, int kBits>
struct PackedRows {
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kWords = kDim / kPlanes / 16;  // 4 codes of each plane in a word
  static constexpr int kSteps = kDim / 16;
  uint32_t words[2][kWords];
  uint32_t high[2];     // 3 bits: bit 8p + i: the third bit of plane p's i-th code (kDim 64, 128)
  uint32_t high2[2];    // the same of planes 2 and 3, 16 bits each (kDim 256)
  uint32_t meta[2][2];  // the first scale and zero as stored; kByte: S8 | Z8 << 8
};

// Where the packed rows of a warp's next tile arrive: codes, then scales (but for several of a row,
// which are read where they lie). Of one warp.
template <int kDim, int kBits>
inline constexpr uint32_t kCodeRowBytes = kDim* kBits / 8;
template <int kDim, int kBits>
inline constexpr uint32_t kInboxCodeBytes = kCudaRowsPerWarp* kCodeRowBytes<kDim, kBits>;
inline constexpr uint32_t kInboxMetaBytes = kCudaRowsPerWarp * 8;
template <int kDim, int kBits>
inline constexpr uint32_t kInboxBytes = kInboxCodeBytes<kDim, kBits> + kInboxMetaBytes;

// Starts to copy rows that lie one after another, kMost bytes at most, in steps of 16: sections are
// made of such, so that the last step stays inside.
template <uint32_t kMost>
__device__ __forceinline__ void StartRows(const uint8_t* from, uint32_t bytes, uint32_t to) {
  const uint32_t own = 16 * LaneNow();
  from += own, to += own;
#pragma unroll
  for (uint32_t i = 0; i < kMost; i += 512) {
    if (own + i < bytes) CopyAsync16(to + i, from + i);
  }
}

// Starts the copies of a tile, without committing them. Rows that do not exist keep what their
// place holds. REQUIRES: the tile before was taken by all lanes.
template <int kDim, int kBits, bool kGrouped>
__device__ __forceinline__ void StartPacked(HeadsAt heads, const WarpRows& rows, uint32_t inbox) {
  constexpr uint32_t kRow = kCodeRowBytes<kDim, kBits>;
  const uint32_t meta_bytes = heads.meta_row_bytes(), meta_offset = heads.meta_offset();
  // No branch: what is loaded here is under way together.
  const uint32_t left = rows.tokens > rows.first ? rows.tokens - rows.first : 0;
  const uint32_t count = min(left, kCudaRowsPerWarp);
  StartRows<kInboxCodeBytes<kDim, kBits>>(rows.block + rows.first * kRow, count * kRow, inbox);
  if constexpr (!kGrouped) {
    StartRows<kInboxMetaBytes>(rows.block + meta_offset + rows.first * meta_bytes,
                               count * meta_bytes, inbox + kInboxCodeBytes<kDim, kBits>);
  }
}

template <int kWords>
__device__ __forceinline__ void TakeWords(uint32_t from, uint32_t (&to)[kWords]) {
  if constexpr (kWords == 1) {
    to[0] = FromShared<uint32_t>(from);
  } else if constexpr (kWords == 2) {
    const auto v = FromShared<uint2>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const auto v = FromShared<uint4>(from + 4 * i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  }
}
__device__ __forceinline__ uint32_t ShortFromShared(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t ByteFromShared(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// The third bits of a lane: of plane p, elements p * kDim / 4 + c * kDim / 16, + kDim / 16.
template <int kDim>
__device__ __forceinline__ void TakeHighBits(uint32_t from, uint32_t c, uint32_t* low,
                                             uint32_t* high) {
  *low = *high = 0;
#pragma unroll
  for (uint32_t p = 0; p < 4; ++p) {
    if constexpr (kDim == 256) {
      const uint32_t two = ShortFromShared(from + 2 * (p * 4 + c));
      if (p < 2)
        *low |= two << (16 * p);
      else
        *high |= two << (16 * (p - 2));
    } else if constexpr (kDim == 128) {
      *low |= ByteFromShared(from + p * 4 + c) << (8 * p);
    } else {
      *low |= (ByteFromShared(from + p * 2 + c / 2) >> (c % 2 * 4) & 15u) << (8 * p);
    }
  }
}

// What a lane needs of a tile that has arrived.
template <int kDim, int kBits, bool kGrouped>
__device__ __forceinline__ void TakePacked(uint8_t form, uint32_t inbox,
                                           PackedRows<kDim, kBits>* out) {
  using Packed = PackedRows<kDim, kBits>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t row = LaneRow() + 8 * half;
    const uint32_t codes = inbox + row * kCodeRowBytes<kDim, kBits>;
    TakeWords(codes + LaneColumn() * (4 * Packed::kWords), out->words[half]);
    out->high[half] = out->high2[half] = out->meta[half][0] = out->meta[half][1] = 0;
    if constexpr (kBits == 3) {
      TakeHighBits<kDim>(codes + kDim / 4, LaneColumn(), &out->high[half], &out->high2[half]);
    }
    if constexpr (kGrouped) continue;
    const uint32_t metas = inbox + kInboxCodeBytes<kDim, kBits>;
    if (form == kCudaMetaByte) {
      out->meta[half][0] = ShortFromShared(metas + 2 * row);
    } else if (form == kCudaMetaBf16) {
      out->meta[half][0] = FromShared<uint32_t>(metas + 4 * row);
    } else {
      const auto pair = FromShared<uint2>(metas + 8 * row);
      out->meta[half][0] = pair.x, out->meta[half][1] = pair.y;
    }
  }
}

struct ScaleZero {
  float scale;
  float zero;
};

// `scales`: the 256 row scales of codec crumb, in shared memory.
template <int kBits>
__device__ __forceinline__ ScaleZero ScaleZeroOf(uint8_t form, const uint32_t (&meta)[2],
                                                 const float* scales) {
  if (form == kCudaMetaFp32) return {__uint_as_float(meta[0]), __uint_as_float(meta[1])};
  if (form == kCudaMetaBf16) return {LowBf16(meta[0]), HighBf16(meta[0])};
  constexpr float kMid = static_cast<float>((1 << kBits) - 1) / 2.0f;
  constexpr float kStep = static_cast<float>(1 << kBits) / 128.0f;
  const int offset = static_cast<int>(meta[0] >> 8 & 0x7fu) - 64;
  return {scales[meta[0] & 0xffu], kMid + static_cast<float>(offset) * kStep};
}

__device__ __forceinline__ float Level(float code, const ScaleZero& sz) {
  return __fmul_rn(__fsub_rn(code, sz.zero), sz.scale);
}

// Four levels of two bits, by look-up of bytes.
struct Levels2 {
  uint32_t low, high;  // levels 0, 1 and 2, 3
  __device__ explicit Levels2(const ScaleZero& sz)
      : low(PackBf16(Level(0.0f, sz), Level(1.0f, sz))),
        high(PackBf16(Level(2.0f, sz), Level(3.0f, sz))) {}
  // Codes in the bytes of x to pairs of BF16.
  __device__ void Decode(uint32_t x, uint32_t* first, uint32_t* second) const {
    const uint32_t select = x * 0x22u + 0x10101010u;
    *first = __byte_perm(low, high, select);
    *second = __byte_perm(low, high, select >> 16);
  }
};

// Any code below 16: arithmetic.
__device__ __forceinline__ void DecodeArithmetic(uint32_t x, const ScaleZero& sz, uint32_t* first,
                                                 uint32_t* second) {
  float level[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // 2^23 + code, exactly; the difference is the code.
    const float code = __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7440u + i)) - 8388608.0f;
    level[i] = Level(code, sz);
  }
  *first = PackBf16(level[0], level[1]);
  *second = PackBf16(level[2], level[3]);
}

template <int kDim, int kBits>
__device__ __forceinline__ uint32_t CodesOf(const PackedRows<kDim, kBits>& packed, int half,
                                            int plane, int word) {
  if constexpr (kBits == 4) return packed.words[half][word] >> (4 * plane) & 0x0f0f0f0fu;
  uint32_t codes = packed.words[half][word] >> (2 * plane) & 0x03030303u;
  if constexpr (kBits == 3) {
    uint32_t bits;
    if constexpr (kDim == 256) {
      bits = (plane < 2 ? packed.high[half] : packed.high2[half]) >> (16 * (plane & 1) + 4 * word);
    } else {
      bits = packed.high[half] >> (8 * plane + 4 * word);
    }
    codes |= ((bits & 15u) * 0x00204081u & 0x01010101u) << 2;
  }
  return codes;
}

// First element of a step's four, to find their group. REQUIRES: groups of 16 or more.
template <int kDim, int kBits>
__device__ __forceinline__ uint32_t StepColumn(bool interleaved, int plane, int word) {
  using Packed = PackedRows<kDim, kBits>;
  const uint32_t at = LaneColumn() * (4 * Packed::kWords) + 4 * word;
  return interleaved ? at * Packed::kPlanes : plane * (kDim / Packed::kPlanes) + at;
}

template <int kDim, int kBits, bool kGrouped>
__device__ __forceinline__ void MakeOperands(HeadsAt heads, uint8_t form, const WarpRows& rows,
                                             const PackedRows<kDim, kBits>& packed,
                                             bool interleaved, const float* scales,
                                             uint32_t (&a)[kDim / 16][4]) {
  using Packed = PackedRows<kDim, kBits>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScaleZero sz = ScaleZeroOf<kBits>(form, packed.meta[half], scales);
    Levels2 levels(sz);
#pragma unroll
    for (int plane = 0; plane < Packed::kPlanes; ++plane) {
#pragma unroll
      for (int word = 0; word < Packed::kWords; ++word) {
        const int s = plane * Packed::kWords + word;
        if constexpr (kGrouped) {
          const uint32_t group = StepColumn<kDim, kBits>(interleaved, plane, word) / heads.group();
          const uint32_t pair = form == kCudaMetaFp32 ? 8 : 4;
          const uint32_t row = rows.first + LaneRow() + 8 * half;
          uint32_t meta[2] = {};
          if (rows.Has(half)) {
            const auto* from = reinterpret_cast<const uint32_t*>(
                rows.block + heads.meta_offset() + row * heads.meta_row_bytes() + group * pair);
            meta[0] = from[0];
            if (pair == 8) meta[1] = from[1];
          }
          sz = ScaleZeroOf<kBits>(form, meta, scales);
          if constexpr (kBits == 2) levels = Levels2(sz);
        }
        const uint32_t codes = CodesOf<kDim, kBits>(packed, half, plane, word);
        if constexpr (kBits == 2) {
          levels.Decode(codes, &a[s][half], &a[s][2 + half]);
        } else {
          DecodeArithmetic(codes, sz, &a[s][half], &a[s][2 + half]);
        }
      }
    }
  }
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_UNPACK_CUH_
