// The decode kernel: unpack -> levels -> inverse rotation -> base -> scatter, one pass, nothing in
// between leaves the multiprocessor. Blocks are persistent: each walks the tiles of one group of
// heads after another, whose rotation stays in shared memory meanwhile. While a tile is multiplied
// the packed rows of the next one are on their way. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_DECODE_CUH_
#define CRUMB_GPU_CODEC_CUDA_DECODE_CUH_

#include "gpu/codec/cuda_scatter.cuh"
#include "gpu/codec/cuda_tuning.h"
#include "gpu/codec/cuda_unpack.cuh"

namespace crumb::cuda {

inline constexpr uint32_t kScaleCount = 256;

// Of one page mean, with what fills it up to 16 bytes.
template <int kDim>
inline constexpr uint32_t kSideBytes = kDim + 16;

// What the bases of a head are made of, and those of one warp.
template <int kDim>
struct alignas(16) BaseInbox {
  uint8_t side[kSideBytes<kDim>];
  float mean[kDim];
};
template <int kDim, int kDepth>
struct BaseRoom {
  BaseInbox<kDim> inbox[kDepth];
  alignas(16) float base[2][kDim];  // [static|page]
};

__device__ __forceinline__ void PutFloats(uint32_t at, const float4& v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// Shared memory of a block. kDepth: tiles that are on their way.
template <int kDim, int kBits, int kTiles, int kDepth, bool kBase>
struct DecodeShared {
  uint8_t image[kDim * kDim * 2];  // aligned to 1024
  alignas(16) uint8_t stages[kTiles * kCudaWarpsPerTile][kScatterBytes<kDim>];
  RowRing rings[kTiles * kCudaWarpsPerTile];
  BlockHeads heads;
  float scales[kScaleCount];
  alignas(16) uint8_t inboxes[kTiles * kCudaWarpsPerTile][kDepth][kInboxBytes<kDim, kBits>];
  BaseRoom<kDim, kDepth> bases[kBase ? kTiles * kCudaWarpsPerTile : 1];
};

// Starts to copy what a warp's head is based on, without committing that.
template <int kDim>
__device__ __forceinline__ void StartBases(HeadsAt heads, const WarpRows& rows, uint32_t to) {
  if (rows.tokens == 0) return;
  if (heads.has_side()) {
    StartRows(rows.block + heads.side_offset(), kSideBytes<kDim>,
              to + offsetof(BaseInbox<kDim>, side));
  }
  if (const float* mean = heads.MeanOf(rows.head); mean != nullptr) {
    StartRows(reinterpret_cast<const uint8_t*>(mean), kDim * 4,
              to + offsetof(BaseInbox<kDim>, mean));
  }
}

// The bases of a warp's head, 32 lanes together: the static mean, and the page's own where it has
// one. FP32 sums, as the reference. REQUIRES: the inbox has arrived.
template <int kDim>
__device__ __forceinline__ void MakeBases(HeadsAt heads, uint32_t inbox, uint32_t base) {
  const bool has_side = heads.has_side(), has_mean = heads.MeanOf(0) != nullptr;
  const uint32_t side = inbox + offsetof(BaseInbox<kDim>, side);
  const float sigma = has_side ? LowBf16(FromShared<uint32_t>(side + kDim)) : 0.0f;
#pragma unroll
  for (uint32_t i = 4 * Lane(); i < kDim; i += 128) {
    float4 mean = {};
    if (has_mean) mean = FromShared<float4>(inbox + offsetof(BaseInbox<kDim>, mean) + 4 * i);
    PutFloats(base + 4 * i, mean);
    if (has_side) {
      const auto p = FromShared<char4>(side + i);
      const uint32_t xy =
          PackBf16(static_cast<float>(p.x) * sigma, static_cast<float>(p.y) * sigma);
      const uint32_t zw =
          PackBf16(static_cast<float>(p.z) * sigma, static_cast<float>(p.w) * sigma);
      mean.x += LowBf16(xy), mean.y += HighBf16(xy);
      mean.z += LowBf16(zw), mean.w += HighBf16(zw);
    }
    PutFloats(base + 4 * (kDim + i), mean);
  }
  __syncwarp();
}

// Eight elements of a base, from `at` on.
struct BaseRun {
  float4 first, second;
  __device__ static BaseRun At(uint32_t at) {
    return {FromShared<float4>(at), FromShared<float4>(at + 16)};
  }
  __device__ void AddTo(uint32_t (&out)[4]) const {
    out[0] = PackBf16(LowBf16(out[0]) + first.x, HighBf16(out[0]) + first.y);
    out[1] = PackBf16(LowBf16(out[1]) + first.z, HighBf16(out[1]) + first.w);
    out[2] = PackBf16(LowBf16(out[2]) + second.x, HighBf16(out[2]) + second.y);
    out[3] = PackBf16(LowBf16(out[3]) + second.z, HighBf16(out[3]) + second.w);
  }
};

// Columns first_column + 32 * t4 + 8c, + 8 of both rows of the product of one pass, to the stage.
// `base`: of both rows.
template <int kDim, int kN, bool kBase>
__device__ __forceinline__ void StageProduct(const float (&d)[kN / 2], int first_column,
                                             const Scatter<kDim>& scatter,
                                             const uint32_t (&base)[2]) {
  const uint32_t own = first_column + 8 * LaneColumn();
  BaseRun next[2];
  if constexpr (kBase) next[0] = BaseRun::At(base[0] + 4 * own);
  if constexpr (kBase) next[1] = BaseRun::At(base[1] + 4 * own);
#pragma unroll
  for (int t4 = 0; t4 < kN / 32; ++t4) {
    uint32_t out[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * t4 + 4 * i + 2 * half;
        out[half][i] = PackBf16(d[at], d[at + 1]);
      }
      if constexpr (kBase) {
        const BaseRun run = next[half];
        // WHY here: a load may not pass the stores to the stage.
        if (t4 + 1 < kN / 32) next[half] = BaseRun::At(base[half] + 4 * (own + 32 * (t4 + 1)));
        run.AddTo(out[half]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // All passes are as wide as the stage.
      Scatter<kDim>::template Put<4>(scatter.At(half, 16 * LaneColumn() + 64 * t4), out[half]);
    }
  }
}

// Levels as they are, in the order of the row: 16 bytes at a time where a lane's run has them.
// Planes of the columns first_column to first_column + kColumns.
template <int kDim, int kBits>
__device__ __forceinline__ void StageLevels(const uint32_t (&a)[kDim / 16][4], int first_column,
                                            const Scatter<kDim>& scatter) {
  using Packed = PackedRows<kDim, kBits>;
  constexpr int kColumns = Scatter<kDim>::kColumns;
  constexpr int kPairs = Packed::kWords > 1 ? 2 : 1;  // words side by side
  const int first = first_column / 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kColumns / 16; i += kPairs) {
      const int s = first + i, plane = s / Packed::kWords, word = s % Packed::kWords;
      const uint32_t own = LaneColumn() * (8 * Packed::kWords);
      const uint32_t of_all = 2 * (plane * (kDim / Packed::kPlanes) + 4 * word - first_column);
      uint32_t out[2 * kPairs] = {a[s][half], a[s][2 + half]};
      if constexpr (kPairs == 2) out[2] = a[s + 1][half], out[3] = a[s + 1][2 + half];
      Scatter<kDim>::template Put<2 * kPairs>(scatter.At(half, own + of_all), out);
    }
  }
}

// The same one element at a time: interleaved codes, or a base where no rotation exists. Rare.
template <int kDim, int kBits>
__device__ __forceinline__ void StageLevelsSlowly(const uint32_t (&a)[kDim / 16][4],
                                                  int first_column, const Scatter<kDim>& scatter,
                                                  const uint32_t (&base)[2], bool interleaved) {
  using Packed = PackedRows<kDim, kBits>;
  const uint32_t step = interleaved ? Packed::kPlanes : 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      const int plane = s / Packed::kWords, word = s % Packed::kWords;
      const uint32_t first =
          StepColumn<kDim, kBits>(interleaved, plane, word) + (interleaved ? plane : 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = a[s][half + i / 2 * 2], column = first + i * step;
        uint32_t out = i % 2 == 0 ? pair & 0xffffu : pair >> 16;
        if (base[half] != 0) {
          out = PackBf16(LowBf16(out) + FromShared<float>(base[half] + 4 * column), 0.0f);
        }
        // Wraps below the first column.
        const uint32_t at = column - static_cast<uint32_t>(first_column);
        if (at < Scatter<kDim>::kColumns) Scatter<kDim>::PutElement(scatter.At(half, 2 * at), out);
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
  // Where wider codes and a base leave no room for two blocks otherwise.
  static constexpr int kDepth = kBase && kBits > 2 ? 1 : kTuning.depth;
  static constexpr int kStageN = Scatter<kDim>::kColumns;
  using Shared = DecodeShared<kDim, kBits, kTiles, kDepth, kBase>;
  using Packed = PackedRows<kDim, kBits>;
  using Room = BaseRoom<kDim, kDepth>;

  // Where a warp finds what it needs.
  struct Context {
    const CudaBatch& batch;
    const HeadsAt heads;
    const RowWalk& walk;
    const Scatter<kDim> scatter;
    const uint32_t image, inbox, bases;  // in shared memory
    const float* scales;
  };

  // Without a product: the rotated frame, and codecs that do not rotate. `base`: of both rows.
  template <bool kAdd>
  __device__ static void Plain(const Context& at, uint32_t n, const uint32_t (&a)[kDim / 16][4],
                               const uint32_t (&base)[2]) {
    const bool interleaved = at.batch.interleaved != 0;
#pragma unroll
    for (int column = 0; column < kDim; column += kStageN) {
      if (!kAdd && !interleaved) {
        StageLevels<kDim, kBits>(a, column, at.scatter);
      } else {
        StageLevelsSlowly<kDim, kBits>(a, column, at.scatter, base, interleaved);
      }
      at.scatter.Store(at.batch, at.walk, at.walk.Rows(n), column);
    }
  }

  // The passes of a product whose first was started.
  template <bool kAdd>
  __device__ static void Passes(const Context& at, uint32_t n, uint32_t (&a)[kDim / 16][4],
                                float (&d)[kStageN / 2], const uint32_t (&base)[2]) {
#pragma unroll
    for (int column = 0; column < kDim; column += kStageN) {
      if (column != 0) StartProduct<kDim / 16, kStageN>(a, at.image + column * (kDim * 2), d);
      FinishProduct(d);
      StageProduct<kDim, kStageN, kAdd>(d, column, at.scatter, base);
      // WHY Rows again: kept over a product they would cost registers that it needs.
      at.scatter.Store(at.batch, at.walk, at.walk.Rows(n), column);
    }
  }

  __device__ static uint32_t InboxOf(const Context& at, uint32_t n) {
    return at.inbox + n % kDepth * kInboxBytes<kDim, kBits>;
  }

  __device__ static uint32_t BaseInboxOf(const Context& at, uint32_t n) {
    return at.bases + n % kDepth * sizeof(BaseInbox<kDim>);
  }

  // What tile n needs sets off.
  template <bool kAdd>
  __device__ static void Fetch(const Context& at, uint32_t n) {
    if (n < at.walk.count()) {
      const WarpRows rows = at.walk.Rows(n);
      StartPacked<kDim, kBits, kGrouped>(at.heads, rows, InboxOf(at, n));
      if constexpr (kAdd) StartBases<kDim>(at.heads, rows, BaseInboxOf(at, n));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // All tiles of the walk. What a tile needs is fetched under the product of the one kDepth before.
  template <bool kProduct, bool kAdd>
  __device__ static void Tiles(const Context& at) {
    const RowWalk& walk = at.walk;
    walk.LookUp(0);
#pragma unroll
    for (uint32_t n = 0; n < kDepth; ++n) Fetch<kAdd>(at, n);
    for (uint32_t n = 0; n < walk.count(); ++n) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
      __syncwarp();
      uint32_t a[kDim / 16][4];
      uint32_t base[2] = {};
      {
        Packed packed;
        TakePacked<kDim, kBits, kGrouped>(at.heads, InboxOf(at, n), &packed);
        MakeOperands<kDim, kBits, kGrouped>(at.heads, walk.Rows(n), packed,
                                            at.batch.interleaved != 0, at.scales, a);
        if constexpr (kAdd) {
          const bool bytes = at.heads.meta() == kCudaMetaByte;
          const uint32_t own = at.bases + offsetof(Room, base);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const bool use_static = !bytes || (packed.meta[half][0] >> 15 & 1) != 0;
            base[half] = use_static ? own : own + 4 * kDim;
          }
        }
      }
      float d[kStageN / 2];
      if constexpr (kProduct) StartProduct<kDim / 16, kStageN>(a, at.image, d);
      if constexpr (kAdd) {
        MakeBases<kDim>(at.heads, BaseInboxOf(at, n), at.bases + offsetof(Room, base));
      }
      walk.LookUp(n + kDepth);
      __syncwarp();
      Fetch<kAdd>(at, n + kDepth);
      if constexpr (kProduct) {
        Passes<kAdd>(at, n, a, d, base);
      } else {
        Plain<kAdd>(at, n, a, base);
      }
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
    const Scatter<kDim> scatter(shared_at + offsetof(Shared, stages) + warp * kScatterBytes<kDim>);
    const uint32_t inbox =
        shared_at + offsetof(Shared, inboxes) + warp * kDepth * kInboxBytes<kDim, kBits>;
    const uint32_t bases = shared_at + offsetof(Shared, bases) + warp * sizeof(Room);
    for (uint32_t h = blockIdx.y; h < heads_count; h += gridDim.y) {
      __syncthreads();
      LoadHeads(batch, heads_table[h], &shared->heads);
      const bool product = heads_table[h].image != nullptr && batch.rotated_frame == 0;
      if (product) LoadImage<kDim>(heads_table[h].image, shared_at + offsetof(Shared, image));
      __syncthreads();
      const RowWalk walk(batch, heads, ring, blockIdx.x * kTiles + TileOfBlock(),
                         gridDim.x * kTiles);
      if (walk.count() == 0) continue;
      const uint32_t image = shared_at + static_cast<uint32_t>(offsetof(Shared, image));
      const Context at = {batch, heads, walk, scatter, image, inbox, bases, shared->scales};
      // V has no base, and what has none is not added.
      const bool add = kBase && batch.rotated_frame == 0 && heads.has_base();
      if (product && add) {
        Tiles<true, kBase>(at);
      } else if (product) {
        Tiles<true, false>(at);
      } else if (add) {
        Tiles<false, kBase>(at);
      } else {
        Tiles<false, false>(at);
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
