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

// The page means of a warp's tiles, and the bases of one. WHY no static means: they are few, and
// stay in the first cache.
template <int kDim, int kDepth>
struct BaseRoom {
  alignas(16) uint8_t side[kDepth][kSideBytes<kDim>];
  alignas(16) float base[2][kDim];  // [static|page]
};
template <int kDim>
struct BaseRoom<kDim, 0> {};

__device__ __forceinline__ void PutFloats(uint32_t at, const float4& v) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// Shared memory of a warp. kDepth: tiles that are on their way. WHY one struct: one address finds
// all of it, and registers are few.
template <int kDim, int kBits, int kDepth, bool kBase>
struct DecodeWarp {
  RowRing ring;
  alignas(16) uint8_t stage[kScatterBytes<kDim>];
  alignas(16) uint8_t inboxes[kDepth][kInboxBytes<kDim, kBits>];
  BaseRoom<kDim, kBase ? kDepth : 0> room;
};
// Of a block.
template <int kDim, int kBits, int kTiles, int kDepth, bool kBase>
struct DecodeShared {
  uint8_t image[kDim * kDim * 2];  // aligned to 1024
  BlockHeads heads;
  float scales[kScaleCount];
  DecodeWarp<kDim, kBits, kDepth, kBase> warps[kTiles * kCudaWarpsPerTile];
};

// Starts to copy the page mean of a warp's head, without committing that.
template <int kDim>
__device__ __forceinline__ void StartSide(HeadsAt heads, const WarpRows& rows, uint32_t to) {
  const uint32_t bytes = heads.has_side() && rows.tokens != 0 ? kSideBytes<kDim> : 0;
  StartRows<kSideBytes<kDim>>(rows.block + heads.side_offset(), bytes, to);
}

// The bases of a warp's head, 32 lanes together: the static mean, and the page's own where it has
// one. FP32 sums, as the reference. WHY Load and Put: means are under way while a tile is unpacked.
template <int kDim>
class Bases {
 public:
  __device__ void Load(HeadsAt heads, uint32_t head) {
    const auto* means = reinterpret_cast<const float4*>(heads.MeanOf(head));
#pragma unroll
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const uint32_t i = 128 * turn + 4 * LaneNow();
      if (kDim < 128 && i >= kDim) break;
      mean_[turn] = {};
      if (means != nullptr) mean_[turn] = __ldg(means + i / 4);
    }
  }
  // REQUIRES: the page mean at `side` has arrived, where there is one.
  __device__ void Put(HeadsAt heads, uint32_t side, uint32_t base) const {
    const bool has_side = heads.has_side();
    const float sigma = has_side ? LowBf16(FromShared<uint32_t>(side + kDim)) : 0.0f;
#pragma unroll
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const uint32_t i = 128 * turn + 4 * LaneNow();
      if (kDim < 128 && i >= kDim) break;
      const uint32_t raised = has_side ? FromShared<uint32_t>(side + i) ^ 0x80808080u : 0;
      float4 sum = mean_[turn];
      PutFloats(base + 4 * i, sum);
      if (has_side) AddSide(raised, sigma, &sum);
      PutFloats(base + 4 * (kDim + i), sum);
    }
    __syncwarp();
  }

 private:
  static constexpr uint32_t kTurns = (kDim + 127) / 128;
  __device__ static void AddSide(uint32_t raised, float sigma, float4* sum) {
    float p[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // 2^23 + 128 + p, exactly.
      p[k] = __uint_as_float(__byte_perm(raised, 0x4b000000u, 0x7440u + k)) - 8388736.0f;
    }
    const uint32_t xy = PackBf16(p[0] * sigma, p[1] * sigma);
    const uint32_t zw = PackBf16(p[2] * sigma, p[3] * sigma);
    sum->x += LowBf16(xy), sum->y += HighBf16(xy);
    sum->z += LowBf16(zw), sum->w += HighBf16(zw);
  }
  float4 mean_[kTurns];
};

// Four elements of a row of a product, rounded to BF16 and with `base` added: by the tensor cores,
// times one. WHY: in registers every element would have to leave its pair for the sum. They cut
// what FP32 has no bits for where an addition rounds it, so that a sum beside a tie of BF16 may
// come out one step away. REQUIRES: 32 lanes together. What the operand takes for two rows are two
// pairs of one.
__device__ __forceinline__ void AddBase(const float* first, const float* second, const float4& base,
                                        uint32_t one, uint32_t* out) {
  const uint32_t pairs[2] = {PackBf16(first[0], first[1]), PackBf16(second[0], second[1])};
  float d[4] = {base.x, base.y, base.z, base.w};
  MultiplyBf16By8(pairs, one, d);
  out[0] = PackBf16(d[0], d[1]);
  out[1] = PackBf16(d[2], d[3]);
}
// The bases of 32 columns of a lane, eight of both rows, at two addresses.
struct BaseRun {
  float4 of[2][2];
  __device__ void Load(const uint32_t (&from)[2], int column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of[half][i] = FromShared<float4>(from[half] + 4 * (column + 4 * i));
      }
    }
  }
};

// The operand that is one: a lane's elements of rows 2c, + 1 of column g.
__device__ __forceinline__ uint32_t IdentityOperand() {
  constexpr uint32_t kOne = 0x3f80u;
  if (LaneRow() / 2 != LaneColumn()) return 0;
  return LaneRow() % 2 == 0 ? kOne : kOne << 16;
}

// Columns first_column + 32 * t4 + 8c, + 8 of both rows of the product of one pass, to the stage.
// `base`: of both rows.
template <int kDim, int kN, bool kBase>
__device__ __forceinline__ void StageProduct(const float (&d)[kN / 2], int first_column,
                                             const Scatter<kDim>& scatter,
                                             const uint32_t (&base)[2]) {
  const uint32_t own = 4 * (first_column + 8 * LaneColumn());
  const uint32_t one = kBase ? IdentityOperand() : 0;
  uint32_t bases[2] = {base[0] + own, base[1] + own};
  // WHY: what the compiler knows of their low bits makes it compute each address anew.
  asm volatile("" : "+r"(bases[0]), "+r"(bases[1]));
  BaseRun run;
  if constexpr (kBase) run.Load(bases, 0);
#pragma unroll
  for (int t4 = 0; t4 < kN / 32; ++t4) {
    uint32_t out[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float* first = d + 16 * t4 + 4 * i + 2 * half;
        if constexpr (kBase) {
          AddBase(first, first + 4, run.of[half][i / 2], one, out[half] + i);
        } else {
          out[half][i] = PackBf16(first[0], first[1]);
          out[half][i + 1] = PackBf16(first[4], first[5]);
        }
      }
    }
    // WHY here: a load may not pass the stores to the stage.
    if (kBase && t4 + 1 < kN / 32) run.Load(bases, 32 * (t4 + 1));
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
  using Warp = DecodeWarp<kDim, kBits, kDepth, kBase>;
  using Room = BaseRoom<kDim, kDepth>;

  // Where a warp finds what it needs.
  struct Context {
    const CudaBatch& batch;
    const HeadsAt heads;
    const RowWalk& walk;
    const uint32_t image;  // in shared memory
    const float* scales;
    // What the warp has in shared memory. WHY hidden from the compiler: it would keep every address
    // of that over the loop, in local memory.
    __device__ uint32_t Own() const {
      uint32_t at = walk.ring();
      asm volatile("" : "+r"(at));
      return at;
    }
    __device__ Scatter<kDim> scatter() const {
      return Scatter<kDim>(Own() + offsetof(Warp, stage));
    }
    __device__ uint32_t room() const { return Own() + offsetof(Warp, room); }
  };

  // Where the bases of both rows of a lane are.
  template <bool kAdd>
  __device__ static void FindBases(const Context& at, uint32_t fixed, uint32_t (&base)[2]) {
    if constexpr (kAdd) {
      const uint32_t first = at.room() + offsetof(Room, base);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        base[half] = (fixed >> half & 1) != 0 ? first : first + 4 * kDim;
      }
    }
  }

  // Without a product: the rotated frame, and codecs that do not rotate.
  template <bool kAdd>
  __device__ static void Plain(const Context& at, uint32_t n, const uint32_t (&a)[kDim / 16][4],
                               uint32_t fixed) {
    uint32_t base[2] = {};
    FindBases<kAdd>(at, fixed, base);
    const bool interleaved = at.batch.interleaved != 0;
#pragma unroll
    for (int column = 0; column < kDim; column += kStageN) {
      if (!kAdd && !interleaved) {
        StageLevels<kDim, kBits>(a, column, at.scatter());
      } else {
        StageLevelsSlowly<kDim, kBits>(a, column, at.scatter(), base, interleaved);
      }
      at.scatter().Store(at.batch, at.walk, at.walk.Rows(n), column);
    }
  }

  // The passes of a product whose first was started.
  template <bool kAdd>
  __device__ static void Passes(const Context& at, uint32_t n, uint32_t (&a)[kDim / 16][4],
                                float (&d)[kStageN / 2], uint32_t fixed) {
#pragma unroll
    for (int column = 0; column < kDim; column += kStageN) {
      if (column != 0) StartProduct<kDim / 16, kStageN>(a, at.image + column * (kDim * 2), d);
      FinishProduct(d);
      uint32_t base[2] = {};
      FindBases<kAdd>(at, fixed, base);
      StageProduct<kDim, kStageN, kAdd>(d, column, at.scatter(), base);
      // WHY Rows again: kept over a product they would cost registers that it needs.
      at.scatter().Store(at.batch, at.walk, at.walk.Rows(n), column);
    }
  }

  __device__ static uint32_t InboxOf(const Context& at, uint32_t n) {
    return at.Own() + offsetof(Warp, inboxes) + n % kDepth * kInboxBytes<kDim, kBits>;
  }

  __device__ static uint32_t SideOf(const Context& at, uint32_t n) {
    return at.room() + n % kDepth * kSideBytes<kDim>;
  }

  // What tile n needs sets off.
  template <bool kAdd>
  __device__ static void Fetch(const Context& at, uint32_t n) {
    if (n < at.walk.count()) {
      const WarpRows rows = at.walk.Rows(n);
      StartPacked<kDim, kBits, kGrouped>(at.heads, rows, InboxOf(at, n));
      if constexpr (kAdd) StartSide<kDim>(at.heads, rows, SideOf(at, n));
    }
    CopyAsyncCommit();
  }

  // The first tiles.
  template <bool kAdd>
  __device__ static void FetchFirst(const Context& at) {
    at.walk.LookUp(0);
#pragma unroll
    for (uint32_t n = 0; n < kDepth; ++n) Fetch<kAdd>(at, n);
  }

  // All tiles of the walk. What a tile needs is fetched under the product of the one kDepth before.
  template <bool kProduct, bool kAdd>
  __device__ static void Tiles(const Context& at) {
    const RowWalk& walk = at.walk;
    for (uint32_t n = 0; n < walk.count(); ++n) {
      CopyAsyncWaitFor<kDepth - 1>();
      __syncwarp();
      Bases<kDim> bases;
      if constexpr (kAdd) bases.Load(at.heads, walk.Rows(n).head);
      uint32_t a[kDim / 16][4];
      uint32_t fixed = 0;  // bit `half`: that row has the static mean alone for its base
      {
        Packed packed;
        TakePacked<kDim, kBits, kGrouped>(at.batch.meta, InboxOf(at, n), &packed);
        MakeOperands<kDim, kBits, kGrouped>(at.heads, at.batch.meta, walk.Rows(n), packed,
                                            at.batch.interleaved != 0, at.scales, a);
        if constexpr (kAdd) {
          const bool bytes = at.batch.meta == kCudaMetaByte;
          fixed = bytes ? (packed.meta[0][0] >> 15 & 1) | (packed.meta[1][0] >> 14 & 2) : 3;
        }
      }
      float d[kStageN / 2];
      if constexpr (kProduct) StartProduct<kDim / 16, kStageN>(a, at.image, d);
      if constexpr (kAdd) bases.Put(at.heads, SideOf(at, n), at.room() + offsetof(Room, base));
      walk.LookUp(n + kDepth);
      __syncwarp();
      Fetch<kAdd>(at, n + kDepth);
      if constexpr (kProduct) {
        Passes<kAdd>(at, n, a, d, fixed);
      } else {
        Plain<kAdd>(at, n, a, fixed);
      }
    }
  }

  __device__ static void Run(const CudaBatch& batch, const CudaHeads* heads_table,
                             uint32_t heads_count, const float* scales) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto* shared = reinterpret_cast<Shared*>(shared_bytes);
    for (uint32_t i = threadIdx.x; i < kScaleCount; i += kThreads) shared->scales[i] = scales[i];
    const uint32_t shared_at = SharedAddress(shared_bytes), warp = threadIdx.x / 32;
    const uint32_t own = shared_at + offsetof(Shared, warps) + warp * sizeof(Warp);
    static_assert(offsetof(Warp, ring) == 0);
    const HeadsAt heads(shared_at + offsetof(Shared, heads));
    LetNextBegin();
    for (uint32_t h = blockIdx.y; h < heads_count; h += gridDim.y) {
      __syncthreads();
      const bool product = heads_table[h].image != nullptr && batch.rotated_frame == 0;
      if (product) StartImage<kDim>(heads_table[h].image, shared_at + offsetof(Shared, image));
      AwaitEarlier();
      LoadHeads(batch, heads_table[h], &shared->heads);
      __syncthreads();
      const RowWalk walk(batch, heads, own, blockIdx.x * kTiles + TileOfBlock(),
                         gridDim.x * kTiles);
      const uint32_t image = shared_at + static_cast<uint32_t>(offsetof(Shared, image));
      const Context at = {batch, heads, walk, image, shared->scales};
      // V has no base, and what has none is not added.
      const bool add = kBase && batch.rotated_frame == 0 && heads.has_base();
      // Under the copy of the image.
      if (add) {
        FetchFirst<kBase>(at);
      } else {
        FetchFirst<false>(at);
      }
      WaitForImage<kDepth>();
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
