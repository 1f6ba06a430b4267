// The decode kernel: unpack -> levels -> inverse rotation -> base -> scatter, one pass, nothing in
// between leaves the multiprocessor. Blocks are persistent: each walks the tiles of one group of
// heads after another, whose rotation stays in shared memory meanwhile. While a tile is multiplied
// the packed rows of the next one are on their way. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_DECODE_CUH_
#define CRUMB_GPU_CODEC_CUDA_DECODE_CUH_

#include "gpu/codec/cuda_tuning.h"
#include "gpu/codec/cuda_unpack.cuh"

namespace crumb::cuda {

inline constexpr uint32_t kScaleCount = 256;

// Of one page mean, with what fills it up to 16 bytes.
template <int kDim>
inline constexpr uint32_t kSideBytes = kDim + 16;

// Shared memory of a block.
template <int kDim, int kTiles, bool kBase>
struct DecodeShared {
  uint8_t image[kDim * kDim * 2];  // aligned to 1024
  RowRing rings[kTiles * kCudaWarpsPerTile];
  BlockHeads heads;
  float scales[kScaleCount];
  alignas(
      16) uint8_t sides[kBase ? kTiles * kCudaWarpsPerTile : 1][2][kBase ? kSideBytes<kDim> : 16];
  alignas(16) float base[kBase ? kTiles * kCudaWarpsPerTile : 1][2]
                        [kBase ? kDim : 4];  // [warp][static|page]
};

// Starts to copy the page mean of a warp's head, and commits that.
template <int kDim>
__device__ __forceinline__ void StartSide(HeadsAt heads, const WarpRows& rows, uint32_t to) {
  if (rows.tokens != 0 && heads.has_side()) {
    const uint8_t* side = rows.block + heads.side_offset();
    for (uint32_t i = 16 * Lane(); i < kSideBytes<kDim>; i += 512) CopyAsync16(to + i, side + i);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// The bases of a warp's head, 32 lanes together: the static mean, and the page's own where it has
// one, whose side has arrived or is the one before the last to be started. FP32 sums, as the
// reference.
template <int kDim>
__device__ __forceinline__ void MakeBases(HeadsAt heads, const WarpRows& rows, uint32_t side,
                                          float (*base)[kDim]) {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncwarp();
  if (rows.tokens != 0) {
    const bool has_side = heads.has_side();
    const float* means = heads.MeanOf(rows.head);
    const float sigma = has_side ? LowBf16(FromShared<uint32_t>(side + kDim)) : 0.0f;
#pragma unroll
    for (uint32_t i = 4 * Lane(); i < kDim; i += 128) {
      float4 mean = {};
      if (means != nullptr) mean = __ldg(reinterpret_cast<const float4*>(means + i));
      *reinterpret_cast<float4*>(&base[0][i]) = mean;
      if (has_side) {
        const auto p = FromShared<char4>(side + i);
        const uint32_t xy =
            PackBf16(static_cast<float>(p.x) * sigma, static_cast<float>(p.y) * sigma);
        const uint32_t zw =
            PackBf16(static_cast<float>(p.z) * sigma, static_cast<float>(p.w) * sigma);
        mean.x += LowBf16(xy), mean.y += HighBf16(xy);
        mean.z += LowBf16(zw), mean.w += HighBf16(zw);
      }
      *reinterpret_cast<float4*>(&base[1][i]) = mean;
    }
  }
  __syncwarp();
}

// 2 or 4 words.
template <int kWords, bool kAligned>
__device__ __forceinline__ void StoreBytes(uint8_t* to, const uint32_t* words) {
  if constexpr (kAligned && kWords == 4) {
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
  } else if constexpr (kAligned) {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      reinterpret_cast<uint16_t*>(to)[2 * i] = static_cast<uint16_t>(words[i]);
      reinterpret_cast<uint16_t*>(to)[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
    }
  }
}

// Columns 32 * t4 + 8c, + 8 of both rows of the product of one pass.
template <int kDim, int kN, bool kBase, bool kAligned>
__device__ __forceinline__ void StoreProduct(const float (&d)[kN / 2], int first_column,
                                             uint8_t* const (&to)[2], const bool (&use_static)[2],
                                             const float (*base)[kDim]) {
#pragma unroll
  for (int t4 = 0; t4 < kN / 32; ++t4) {
    const uint32_t column = first_column + 32 * t4 + 8 * LaneColumn();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t out[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * t4 + 4 * i + 2 * half;
        out[i] = PackBf16(d[at], d[at + 1]);
      }
      if constexpr (kBase) {
        const float* from = &base[use_static[half] ? 0 : 1][column];
        const float4 b0 = *reinterpret_cast<const float4*>(from);
        const float4 b1 = *reinterpret_cast<const float4*>(from + 4);
        out[0] = PackBf16(LowBf16(out[0]) + b0.x, HighBf16(out[0]) + b0.y);
        out[1] = PackBf16(LowBf16(out[1]) + b0.z, HighBf16(out[1]) + b0.w);
        out[2] = PackBf16(LowBf16(out[2]) + b1.x, HighBf16(out[2]) + b1.y);
        out[3] = PackBf16(LowBf16(out[3]) + b1.z, HighBf16(out[3]) + b1.w);
      }
      if (to[half] != nullptr) StoreBytes<4, kAligned>(to[half] + 2 * column, out);
    }
  }
}

// Levels as they are, in the order of the row: 16 bytes at a time where a lane's run has them.
template <int kDim, int kBits, bool kAligned>
__device__ __forceinline__ void StoreLevels(const uint32_t (&a)[kDim / 16][4],
                                            uint8_t* const (&to)[2]) {
  using Packed = PackedRows<kDim, kBits>;
  constexpr int kPairs = Packed::kWords > 1 ? 2 : 1;  // words side by side
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (to[half] == nullptr) continue;
#pragma unroll
    for (int s = 0; s < kDim / 16; s += kPairs) {
      const int plane = s / Packed::kWords, word = s % Packed::kWords;
      const uint32_t column = StepColumn<kDim, kBits>(false, plane, word);
      uint32_t out[2 * kPairs] = {a[s][half], a[s][2 + half]};
      if constexpr (kPairs == 2) out[2] = a[s + 1][half], out[3] = a[s + 1][2 + half];
      StoreBytes<2 * kPairs, kAligned>(to[half] + 2 * column, out);
    }
  }
}

// The same one element at a time: interleaved codes, or a base where no rotation exists. Rare.
template <int kDim, int kBits, bool kBase>
__device__ __forceinline__ void StoreLevelsSlowly(const uint32_t (&a)[kDim / 16][4],
                                                  uint8_t* const (&to)[2],
                                                  const float* const (&add)[2], bool interleaved) {
  using Packed = PackedRows<kDim, kBits>;
  const uint32_t step = interleaved ? Packed::kPlanes : 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (to[half] == nullptr) continue;
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      const int plane = s / Packed::kWords, word = s % Packed::kWords;
      const uint32_t column =
          StepColumn<kDim, kBits>(interleaved, plane, word) + (interleaved ? plane : 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = a[s][half + i / 2 * 2];
        uint32_t out = i % 2 == 0 ? pair & 0xffffu : pair >> 16;
        if (add[half] != nullptr) {
          out = PackBf16(LowBf16(out) + add[half][column + i * step], 0.0f);
        }
        reinterpret_cast<uint16_t*>(to[half])[column + i * step] = static_cast<uint16_t>(out);
      }
    }
  }
}

template <int kDim, int kBits, bool kGrouped, bool kBase>
struct DecodeKernel {
  static constexpr KernelTuning kTuning = DecodeTuningOf<kDim>();
  static constexpr int kTiles = kTuning.tiles;
  static constexpr int kThreads = kTiles * 128;
  static constexpr int kBlocks = kTuning.blocks;
  static constexpr int kPassN = kDim < 128 ? kDim : 128;
  using Shared = DecodeShared<kDim, kTiles, kBase>;
  using Packed = PackedRows<kDim, kBits>;

  using Base = float[kBase ? kDim : 4];

  struct Output {
    uint8_t* to[2];      // of both rows; null: none
    bool use_static[2];  // which base they use
  };

  // Without a product: the rotated frame, and codecs that do not rotate.
  __device__ static void TilePlain(const CudaBatch& batch, const uint32_t (&a)[kDim / 16][4],
                                   const Output& out, bool add, const Base* base) {
    if (!add && batch.interleaved == 0 && batch.aligned != 0) {
      return StoreLevels<kDim, kBits, true>(a, out.to);
    }
    const float* vectors[2] = {};
    if (add) {
      vectors[0] = base[out.use_static[0] ? 0 : 1];
      vectors[1] = base[out.use_static[1] ? 0 : 1];
    }
    StoreLevelsSlowly<kDim, kBits, kBase>(a, out.to, vectors, batch.interleaved != 0);
  }

  template <bool kAdd>
  __device__ static void TileProduct(const CudaBatch& batch, const uint32_t (&a)[kDim / 16][4],
                                     const Output& out, uint32_t image, const Base* base) {
    auto* vectors = reinterpret_cast<const float(*)[kDim]>(base);
#pragma unroll
    for (int pass = 0; pass < kDim / kPassN; ++pass) {
      float d[kPassN / 2];
      MultiplyTile<kDim / 16, kPassN>(a, image + pass * (kDim * kPassN * 2), d);
      if (batch.aligned != 0) {
        StoreProduct<kDim, kPassN, kAdd, true>(d, pass * kPassN, out.to, out.use_static, vectors);
      } else {
        StoreProduct<kDim, kPassN, kAdd, false>(d, pass * kPassN, out.to, out.use_static, vectors);
      }
    }
  }

  __device__ static void Tile(const CudaBatch& batch, HeadsAt heads, const RowWalk& walk,
                              const WarpRows& rows, const uint32_t (&a)[kDim / 16][4],
                              const uint32_t (&meta)[2], bool product, uint32_t image,
                              uint32_t side, Base* base) {
    Output out;
    const bool bytes = heads.meta() == kCudaMetaByte;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out.to[half] = rows.Has(half) ? walk.RawRow(rows, LaneRow() + 8 * half) : nullptr;
      out.use_static[half] = !bytes || (meta[half] >> 15 & 1) != 0;
    }
    // V has no base, and what has none is not added.
    const bool add = kBase && batch.rotated_frame == 0 && heads.has_base();
    if constexpr (kBase) {
      if (add) MakeBases<kDim>(heads, rows, side, base);
    }
    if (product && add) {
      TileProduct<kBase>(batch, a, out, image, base);
    } else if (product) {
      TileProduct<false>(batch, a, out, image, base);
    } else {
      TilePlain(batch, a, out, add, base);
    }
  }

  __device__ static void Run(const CudaBatch& batch, const CudaHeads* heads_table,
                             uint32_t heads_count, const float* scales) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto* shared = reinterpret_cast<Shared*>(shared_bytes);
    for (uint32_t i = threadIdx.x; i < kScaleCount; i += kThreads) shared->scales[i] = scales[i];
    const uint32_t shared_at = SharedAddress(shared_bytes), warp = threadIdx.x / 32;
    const uint32_t ring = shared_at + offsetof(Shared, rings) + warp * sizeof(RowRing);
    const HeadsAt heads(shared_at + offsetof(Shared, heads));
    Base* base = shared->base[kBase ? warp : 0];
    const uint32_t sides = shared_at + offsetof(Shared, sides) + warp * 2 * kSideBytes<kDim>;
    for (uint32_t h = blockIdx.y; h < heads_count; h += gridDim.y) {
      __syncthreads();
      LoadHeads(batch, heads_table[h], &shared->heads);
      const bool product = heads_table[h].image != nullptr && batch.rotated_frame == 0;
      if (product) LoadImage<kDim>(heads_table[h].image, shared_at + offsetof(Shared, image));
      __syncthreads();
      const RowWalk walk(batch, heads, ring, blockIdx.x * kTiles + TileOfBlock(),
                         gridDim.x * kTiles);
      if (walk.count() == 0) continue;
      walk.LookUp(0);
      WarpRows next = walk.Rows(0);
      Packed packed;
      LoadPacked<kDim, kBits>(heads, next, &packed);
      if constexpr (kBase) StartSide<kDim>(heads, next, sides);
      for (uint32_t n = 0; n < walk.count(); ++n) {
        uint32_t a[kDim / 16][4];
        MakeOperands<kDim, kBits, kGrouped>(heads, next, packed, batch.interleaved != 0,
                                            shared->scales, a);
        const uint32_t meta[2] = {packed.meta[0][0], packed.meta[1][0]};
        const WarpRows rows = next;
        walk.LookUp(n + 1);
        if (n + 1 < walk.count()) {
          next = walk.Rows(n + 1);
          LoadPacked<kDim, kBits>(heads, next, &packed);
        } else {
          next.tokens = 0;
        }
        // Two sides, and a commit for every tile, so that the one before the last is this tile's.
        const uint32_t side = sides + n % 2 * kSideBytes<kDim>;
        if constexpr (kBase) StartSide<kDim>(heads, next, sides + (n + 1) % 2 * kSideBytes<kDim>);
        Tile(batch, heads, walk, rows, a, meta, product, shared_at + offsetof(Shared, image), side,
             base);
      }
    }
  }
};

template <int kDim, int kBits, bool kGrouped, bool kBase>
__global__ void __launch_bounds__(DecodeKernel<kDim, kBits, kGrouped, kBase>::kThreads,
                                  DecodeKernel<kDim, kBits, kGrouped, kBase>::kBlocks)
    Decode(const __grid_constant__ CudaBatch batch, const CudaHeads* heads, uint32_t heads_count,
           const float* scales) {
  DecodeKernel<kDim, kBits, kGrouped, kBase>::Run(batch, heads, heads_count, scales);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_DECODE_CUH_
