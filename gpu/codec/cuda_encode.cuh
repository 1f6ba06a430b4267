// The encode kernel of OSCAR-like codecs: gather -> rotate -> clip -> quantise -> pack in one pass.
// Persistent blocks as in cuda_decode.cuh; every warp gathers its next rows while it works on the
// ones before. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_ENCODE_CUH_
#define CRUMB_GPU_CODEC_CUDA_ENCODE_CUH_

#include "gpu/codec/cuda_account.cuh"
#include "gpu/codec/cuda_select.cuh"
#include "gpu/codec/cuda_tuning.h"

namespace crumb::cuda {

template <int kDim, int kTiles>
struct EncodeShared {
  uint8_t image[kDim * kDim * 2];  // aligned to 1024
  alignas(16) uint8_t gathers[kTiles * kCudaWarpsPerTile][kGatherBytes<kDim>];
  RowRing rings[kTiles * kCudaWarpsPerTile];
  BlockHeads heads;
};

template <int kDim, int kBits, bool kGrouped, bool kBase>
struct EncodeKernel {
  static constexpr KernelTuning kTuning = EncodeTuningOf<kDim>();
  static constexpr int kTiles = kTuning.tiles;
  static constexpr int kThreads = kTiles * 128;
  static constexpr int kBlocks = kTuning.blocks;
  static constexpr int kPassN = kDim < 128 ? kDim : 128;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kCount = kDim / 4;  // elements of a row in a lane
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kWords = kCount / 16 * (kBits / 2);  // of packed codes in a lane
  using Shared = EncodeShared<kDim, kTiles>;
  using Group = GroupQuantiser<kCount, kBits>;

  // x - mean, rounded to BF16, as the reference does before it rotates.
  __device__ static void Centre(HeadsAt heads, const WarpRows& rows, uint32_t (&a)[kSteps][4]) {
    const float* mean = heads.MeanOf(rows.head);
    if (mean == nullptr) return;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 m =
            __ldg(reinterpret_cast<const float2*>(mean + 16 * s + 8 * (i / 2)) + LaneColumn());
        a[s][i] = PackBf16OrInfinity(LowBf16(a[s][i]) - m.x, HighBf16(a[s][i]) - m.y);
      }
    }
  }

  // Rotated rows in pairs of 16 bits, of a product whose first pass was started. kSaturates: what
  // is too large becomes the largest BF16, else an infinity.
  template <bool kSaturates>
  __device__ static void FinishRotate(uint32_t (&a)[kSteps][4], uint32_t image,
                                      float (&d)[kPassN / 2], uint32_t (&y)[kCount]) {
#pragma unroll
    for (int pass = 0; pass < kDim / kPassN; ++pass) {
      if (pass > 0) StartProduct<kSteps, kPassN>(a, image + pass * (kDim * kPassN * 2), d);
      FinishProduct(d);
#pragma unroll
      for (int i = 0; i < kPassN / 4; ++i) {
        const int at = i / 2 * 4 + i % 2;
        y[pass * (kPassN / 4) + i] =
            kSaturates ? PackBf16(d[at], d[at + 2]) : PackBf16OrInfinity(d[at], d[at + 2]);
      }
    }
  }

  // The same for rows that are not rotated.
  __device__ static void CentreRows(HeadsAt heads, const WarpRows& rows, bool interleaved,
                                    uint32_t (&y)[kCount]) {
    const float* mean = heads.MeanOf(rows.head);
    if (mean == nullptr) return;
#pragma unroll
    for (uint32_t at = 0; at < kCount; ++at) {
      const float m = __ldg(mean + ColumnOf<kDim, kPlanes>(at, interleaved));
      y[at] = PackBf16OrInfinity(LowBf16(y[at]) - m, HighBf16(y[at]) - m);
    }
  }
  __device__ static void StoreWords(uint8_t* to, const uint32_t (&words)[kWords]) {
    if constexpr (kWords == 1) {
      *reinterpret_cast<uint32_t*>(to) = words[0];
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        reinterpret_cast<uint4*>(to)[i / 4] =
            make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
      }
    }
  }

  __device__ static void StoreMeta(bool bf16, uint8_t* to, const Affine& affine) {
    if (bf16) {
      *reinterpret_cast<uint32_t*>(to) = PackBf16(affine.scale, affine.zero);
    } else {
      *reinterpret_cast<float2*>(to) = make_float2(affine.scale, affine.zero);
    }
  }

  struct Context {
    const CudaBatch& batch;
    const HeadsAt heads;
    const RowWalk& walk;
    const WarpRows& rows;
    CudaPageReport* report;
    bool sampled, bf16_meta;
    bool small;  // no magnitude of the warp's rows reaches 2^60
  };

  // The least and the largest element of both rows, or NaN.
  struct Range {
    uint32_t low, high;
  };
  __device__ static Range RangeOf(const uint32_t (&y)[kCount]) {
    Range out = {y[0], y[0]};
#pragma unroll
    for (int i = 1; i < kCount; ++i) {
      out.low = MinBf16OrNan(out.low, y[i]), out.high = MaxBf16OrNan(out.high, y[i]);
    }
    return {QuadMin(out.low), QuadMax(out.high)};
  }
  __device__ static uint32_t MostOf(const Range& range) {
    return __vmaxu2(range.low & 0x7fff7fffu, range.high & 0x7fff7fffu);
  }

  // Within the clip, and with the sign of the first zero where zero is the least.
  __device__ static Range Clip(const uint32_t (&y)[kCount], const Range& range, uint32_t bound) {
    uint32_t low = MaxBf16(range.low, bound ^ 0x80008000u);
    if (__any_sync(0xffffffffu, (low & 0x7fffu) == 0 || (low & 0x7fff0000u) == 0)) {
      low = SignZeros<kCount, kPlanes>(y, low, bound);
    }
    return {low, MinBf16(range.high, bound)};
  }

  // A row whose sums are not all finite: it has a NaN or an infinity, or is a finite row that does
  // not fit into BF16 once rotated. Reported; then as the reference goes on.
  __device__ static Range Saturate(const Context& at, Range range, uint32_t (&y)[kCount]) {
    const uint32_t most = MostOf(range);
    const uint32_t finite =
        ((most & 0xffffu) < 0x7f80u ? 1u : 0u) | (most >> 16 < 0x7f80u ? 2u : 0u);
    if (__all_sync(0xffffffffu, finite == 3)) return range;
    ReportRows<kDim>(at.report, at.walk, at.rows, at.heads.tensor(), finite);
#pragma unroll
    for (int i = 0; i < kCount; ++i) y[i] = MinBf16(MaxBf16(y[i], 0xff7fff7fu), 0x7f7f7f7fu);
    return RangeOf(y);
  }

  // The pair that each lane worked out for its row (g + 8 * (c & 1)), of row `half`.
  __device__ static Affine OfRow(const Affine& own, int half) {
    const uint32_t from = (Lane() & 28) + half;
    Affine affine;
    affine.scale = __shfl_sync(0xffffffffu, own.scale, from);
    affine.zero = __shfl_sync(0xffffffffu, own.zero, from);
    affine.floored = __shfl_sync(0xffffffffu, own.floored ? 1 : 0, from) != 0;
    return affine;
  }

  // One scale for a row.
  __device__ static void QuantiseRow(const Context& at, const uint32_t (&y)[kCount],
                                     const Range& range, uint32_t bound, uint8_t* meta,
                                     uint32_t (&words)[2][kWords]) {
    const int c = static_cast<int>(LaneColumn());
    Affine own;
    if constexpr (kBits == 2) {
      own = QuantiseByBounds<kCount>(y, range.low, range.high, at.small, words);
    } else {
      own = QuantiseRow4(at, y, range, bound, words);
    }
    if (c < 2 && at.rows.Has(c)) {
      StoreMeta(at.bf16_meta, meta + 8 * c * at.heads.meta_row_bytes(), own);
    }
    const bool floored = __any_sync(0xffffffffu, own.floored);
    if (!at.sampled && !floored) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Affine affine = OfRow(own, half);
      const Affine all[4] = {affine, affine, affine, affine};
      Account(at, y, half, words[half], all, floored);
    }
  }

  __device__ static Affine QuantiseRow4(const Context& at, const uint32_t (&y)[kCount],
                                        const Range& range, uint32_t bound,
                                        uint32_t (&words)[2][kWords]) {
    const int c = static_cast<int>(LaneColumn());
    const float low = HalfOf(range.low, c & 1), high = HalfOf(range.high, c & 1);
    const Affine own = at.small ? AffineOf<true>(low, high, 15.0f) : AffineOfAny(low, high, 15.0f);
    const Affine affine[2] = {OfRow(own, 0), OfRow(own, 1)};
    if (at.small && at.heads.rank() == 0) {
      RowQuantiser4<kCount>::template Codes<true, false>(y, bound, affine, words);
    } else if (at.small) {
      RowQuantiser4<kCount>::template Codes<true, true>(y, bound, affine, words);
    } else {
      RowQuantiser4<kCount>::template Codes<false, true>(y, bound, affine, words);
    }
    return own;
  }

  // Of one row: into the page's sums if it is a sample, and whether it fits if the floor was met.
  __device__ static void Account(const Context& at, const uint32_t (&y)[kCount], int half,
                                 const uint32_t (&words)[kWords], const Affine* affine,
                                 bool floored) {
    const bool has = at.rows.Has(half);
    if (at.sampled) {
      float error = 0.0f, energy = 0.0f;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        AddErrors<kCount, kBits>(y, half, p, words, Stored(at.bf16_meta, affine[p]), &error,
                                 &energy);
      }
      AddSample(has, error, energy, at.heads.is_v() ? 1 : 0, at.report);
    }
    if (!floored) return;
    double error = 0.0, energy = 0.0;
    bool of_lane = false;
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      AddErrors<kCount, kBits>(y, half, p, words, Stored(at.bf16_meta, affine[p]), &error, &energy);
      of_lane |= affine[p].floored;
    }
    CountUnfit(has, of_lane, error, energy, at.report);
  }

  // Several scales: a division per element.
  __device__ static void QuantiseGroups(const Context& at, const uint32_t (&y)[kCount],
                                        uint32_t bound, uint8_t* meta,
                                        uint32_t (&words)[2][kWords]) {
    const uint32_t pair = at.bf16_meta ? 4 : 8;
    const uint32_t group = kGrouped ? at.heads.group() : kDim;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float clip = HalfOf(bound, half);
      Affine affine[kPlanes];
      bool floored = false, bounded = false;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        affine[p] = kGrouped || p == 0 ? Group::Of(y, half, p, group, clip, &bounded) : affine[0];
        if (bounded) {
          Group::template Codes<true>(y, half, p, affine[p], clip, words[half]);
        } else {
          Group::template Codes<false>(y, half, p, affine[p], clip, words[half]);
        }
        floored |= affine[p].floored;
        const uint32_t column = p * (kDim / kPlanes) + LaneColumn() * Group::kRun;
        if (at.rows.Has(half) && column % group == 0) {
          StoreMeta(at.bf16_meta,
                    meta + 8 * half * at.heads.meta_row_bytes() + column / group * pair, affine[p]);
        }
      }
      const bool any_floored = __any_sync(0xffffffffu, floored);
      if (!at.sampled && !any_floored) continue;
      Account(at, y, half, words[half], affine, any_floored);
    }
  }

  __device__ static void QuantiseRows(Context at, uint32_t (&y)[kCount]) {
    Range range = RangeOf(y);
    at.small = __all_sync(0xffffffffu, SmallMagnitudes(MostOf(range)));
    if (!at.small) range = Saturate(at, range, y);
    uint32_t bound = 0x7f7f7f7fu;
    if (const uint32_t rank = at.heads.rank(); rank != 0) bound = Select<kCount>(y, rank, at.small);
    uint32_t words[2][kWords] = {};
    const uint32_t row = at.rows.first + LaneRow(), code_bytes = at.heads.code_row_bytes();
    uint8_t* meta = at.rows.block + at.heads.meta_offset() + row * at.heads.meta_row_bytes();
    if constexpr (kGrouped) {
      QuantiseGroups(at, y, bound, meta, words);
    } else {
      QuantiseRow(at, y, Clip(y, range, bound), bound, meta, words);
    }
    uint8_t* codes = at.rows.block + row * code_bytes + LaneColumn() * (4 * kWords);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (at.rows.Has(half)) StoreWords(codes + 8 * half * code_bytes, words[half]);
    }
  }

  __device__ static void Tile(const CudaBatch& batch, HeadsAt heads, const RowWalk& walk,
                              const WarpRows& rows, uint32_t (&y)[kCount]) {
    // A warp past the last head of a page list has no block, one past a page's rows no tokens.
    if (rows.block == nullptr) return;
    if (rows.tokens > rows.first) {
      const bool bf16 = batch.meta == kCudaMetaBf16;
      QuantiseRows({batch, heads, walk, rows, batch.reports + rows.page,
                    Sampled(rows, heads.tensor()), bf16, false},
                   y);
    }
    const uint32_t end = rows.first + kCudaRowsPerWarp;
    if (end >= batch.page_tokens || end > rows.tokens) ClearRest(batch.page_tokens, heads, rows);
  }

  // All tiles of a walk whose first was started; the next one is gathered under the product of this
  // one.
  template <bool kRotates>
  __device__ static void Tiles(const CudaBatch& batch, HeadsAt heads, const RowWalk& walk,
                               const Gather<kDim>& gather, uint32_t image) {
    for (uint32_t n = 0; n < walk.count(); ++n) {
      Gather<kDim>::Wait();
      uint32_t y[kCount], a[kSteps][4];
      float d[kPassN / 2];
      if constexpr (kRotates) {
        gather.Take(a);
        if constexpr (kBase) Centre(heads, walk.Rows(n), a);
        StartProduct<kSteps, kPassN>(a, image, d);
      } else {
        gather.template TakeRows<kPlanes>(batch.interleaved != 0, y);
        if constexpr (kBase) CentreRows(heads, walk.Rows(n), batch.interleaved != 0, y);
      }
      // Not before: what was gathered is taken.
      __syncwarp();
      walk.LookUp(n + 1);
      if (n + 1 < walk.count()) gather.Start(batch, walk, walk.Rows(n + 1));
      if constexpr (kRotates) FinishRotate<false>(a, image, d, y);
      Tile(batch, heads, walk, walk.Rows(n), y);
    }
  }

  __device__ static void Run(const CudaBatch& batch, const CudaHeads* heads_table,
                             uint32_t heads_count) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto* shared = reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t base = SharedAddress(shared_bytes);
    const uint32_t warp = threadIdx.x / 32;
    const Gather<kDim> gather(base + offsetof(Shared, gathers) + warp * kGatherBytes<kDim>);
    const uint32_t ring = base + offsetof(Shared, rings) + warp * sizeof(RowRing);
    const HeadsAt heads(base + offsetof(Shared, heads));
    const uint32_t image = base + static_cast<uint32_t>(offsetof(Shared, image));
    gather.Prepare();
    LetNextBegin();
    for (uint32_t h = blockIdx.y; h < heads_count; h += gridDim.y) {
      __syncthreads();
      const bool rotates = heads_table[h].image != nullptr;
      if (rotates) StartImage<kDim>(heads_table[h].image, image);
      AwaitEarlier();
      LoadHeads(batch, heads_table[h], &shared->heads);
      __syncthreads();
      const RowWalk walk(batch, heads, ring, blockIdx.x * kTiles + TileOfBlock(),
                         gridDim.x * kTiles);
      // Under the copy of the image.
      gather.StartFirst(batch, walk);
      WaitForImage<1>();
      if (rotates) {
        Tiles<true>(batch, heads, walk, gather, image);
      } else {
        Tiles<false>(batch, heads, walk, gather, image);
      }
    }
  }
};

template <int kDim, int kBits, bool kGrouped, bool kBase>
__global__ void __launch_bounds__(EncodeKernel<kDim, kBits, kGrouped, kBase>::kThreads,
                                  EncodeKernel<kDim, kBits, kGrouped, kBase>::kBlocks)
    Encode(const __grid_constant__ CudaBatch batch, const CudaHeads* heads, uint32_t heads_count) {
  EncodeKernel<kDim, kBits, kGrouped, kBase>::Run(batch, heads, heads_count);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_ENCODE_CUH_
