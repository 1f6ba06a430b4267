// The crumb encode kernel of V: gather -> rotate -> range -> nearest codes -> gain -> pack in one
// pass. Without feedback rows need no lane of their own: a quad of lanes has rows g and g + 8 as in
// cuda_encode.cuh, with their FP16 values side by side in a register, and four warps multiply
// together. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_VALUES_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_VALUES_CUH_

#include "gpu/codec/cuda_crumb_encode.cuh"
#include "gpu/codec/cuda_encode.cuh"

namespace crumb::cuda {

template <int kDim, int kBits>
struct CrumbValuesKernel {
  using Affine = EncodeKernel<kDim, kBits, false, false>;  // the same lanes
  using Shared = EncodeShared<kDim, CrumbValuesTuningOf<kDim>().tiles>;
  using Grid = CrumbLevelGrid<kBits>;
  using Range = CrumbRange<kDim, kBits>;
  static constexpr int kTiles = CrumbValuesTuningOf<kDim>().tiles;
  static constexpr int kThreads = kTiles * 128;
  static constexpr int kBlocks = CrumbValuesTuningOf<kDim>().blocks;
  static constexpr int kCount = kDim / 4;  // elements of a row in a lane
  static constexpr int kPlanes = kBits == 4 ? 2 : 4;
  static constexpr int kRun = kCount / kPlanes;
  static constexpr int kWords = kRun / 4;  // of packed codes in a lane
  static constexpr int kRangeSteps = Range::kSteps;

  // Of rows g and g + 8.
  template <typename T>
  using Both = T[2];

  __device__ static float OfQuad(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  }
  // From the lane of the quad that worked on that row.
  __device__ static float Of(int half, float v) {
    return __shfl_sync(0xffffffffu, v, static_cast<int>((Lane() & 28) + half));
  }
  struct Sums {
    Both<float> sum = {}, energy = {};
    float errors[kRangeSteps][2] = {};
  };
  __device__ static void Add(__half2 partial, float (&to)[2]) {
    to[0] += __low2float(partial), to[1] += __high2float(partial);
  }

  // Makes the elements FP16 and sums what the gain and the choice of a range need.
  template <int kRanges>
  __device__ static void Pass(const typename Range::Start& own, uint32_t (&y)[kCount], Sums* sums) {
    const uint32_t down = PackBf16(Of(0, own.down), Of(1, own.down));
    const float first = Of(0, own.inverse), second = Of(1, own.inverse);
    const __half2 shift =
        AsHalf2(PackHalf(Of(0, own.fit.zero) - Grid::kMid, Of(1, own.fit.zero) - Grid::kMid));
    // FP16 sums of so few keep ten bits.
    constexpr int kFlush = 16;
    __half2 inverses[kRangeSteps], partial[kRangeSteps], sum, energy;
#pragma unroll
    for (int k = 0; k < kRanges; ++k) {
      const float longer = 1.0f / Range::Shrink(k);
      inverses[k] = AsHalf2(PackHalf(first * longer, second * longer));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t scaled = TimesBf16(y[i], down);
      const float a = LowBf16(scaled), b = HighBf16(scaled);
      y[i] = PackHalf(a, b);
      const __half2 v = AsHalf2(y[i]);
      sum = i % kFlush == 0 ? v : __hadd2(sum, v);
      energy = i % kFlush == 0 ? __hmul2(v, v) : __hfma2(v, v, energy);
      if (i % kFlush == kFlush - 1) Add(sum, sums->sum), Add(energy, sums->energy);
      if constexpr (kRanges > 1) {
#pragma unroll
        for (int k = 0; k < kRanges; ++k) {
          const __half2 x = Range::Distance(__hfma2(v, inverses[k], shift));
          partial[k] = i % kFlush == 0 ? __hmul2(x, x) : __hfma2(x, x, partial[k]);
          if (i % kFlush == kFlush - 1) Add(partial[k], sums->errors[k]);
        }
      }
    }
  }

  // Nearest codes of row g + 8 half into `words`; sum of code times element.
  __device__ static float Codes(const uint32_t (&y)[kCount], int half, float steep, float shift,
                                uint32_t (&words)[kWords]) {
    float along = 0.0f;
    uint32_t sums[kWords] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float v = half == 0 ? __low2float(AsHalf2(y[i])) : __high2float(AsHalf2(y[i]));
      const float m = fmaf(__saturatef(fmaf(v, steep, shift)), Grid::kTop, kRounder);
      sums[i % kRun / 4] += __float_as_uint(m) << (8 * (i % 4) + 8 / kPlanes * (i / kRun));
      along = fmaf(m - kRounder, v, along);
    }
    // What the rounder's own bits added up to: every byte of every plane once.
    constexpr uint32_t kOnes = kPlanes == 4 ? 0x55555555u : 0x11111111u;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = sums[w] - kRounderBits * kOnes;
    return along;
  }

  struct Errors {
    float error, energy;
  };
  // Squared error as a reader will see it, and energy, in absolute terms; over the quad.
  __device__ __noinline__ static Errors ErrorsOf(const uint32_t (&y)[kCount], int half, float unit,
                                                 float scale, float zero,
                                                 const uint32_t (&words)[kWords]) {
    Errors out = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t code =
          words[i % kRun / 4] >> (8 * (i % 4) + 8 / kPlanes * (i / kRun)) & ((1u << kBits) - 1);
      const float v = unit * (half == 0 ? __low2float(AsHalf2(y[i])) : __high2float(AsHalf2(y[i])));
      const float level = __fmul_rn(__fsub_rn(static_cast<float>(code), zero), scale);
      const float e = v - LowBf16(PackBf16(level, 0.0f));
      out.error = fmaf(e, e, out.error);
      out.energy = fmaf(v, v, out.energy);
    }
    return {OfQuad(out.error), OfQuad(out.energy)};
  }

  struct Stored {  // of the row that this lane of the quad works on
    StoredScale scale;
    uint32_t zero_index;
    float zero, unit;
    bool clamped, unfit;
  };

  // The gain, and the scale that is stored.
  __device__ static Stored Finish(const CrumbFit& fit, const StoredScale& scale,
                                  const StoredScale& zero, float along, const float* scales) {
    Stored out = {scale, zero.index, zero.value, fit.unit, false, false};
    if (fit.unit == 0.0f) {  // zeros, or nothing that a level comes near
      out.scale.index = fit.large ? 255 : 0;
      out.unfit = !fit.ordinary && fit.finite;
      return out;
    }
    const float per_unit = __uint_as_float(0x7f000000u - __float_as_uint(fit.unit));
    const float kept = scale.value * per_unit * (along - zero.value * fit.sum);
    const bool guarded = !(kept >= 0.3f * fit.energy);
    out.scale =
        StoreScale(scales, guarded ? scale.value : scale.value * __fdividef(fit.energy, kept));
    out.clamped = scale.clamped || zero.clamped || out.scale.clamped || guarded;
    return out;
  }

  struct Context {
    const CudaBatch& batch;
    const HeadsAt heads;
    const RowWalk& walk;
    const WarpRows& rows;
    const float* scales;
    bool draft;
  };

  // Into the page's sums if the rows are samples, and whether a clamped row fits.
  __device__ static void Account(const Context& at, const uint32_t (&y)[kCount], const Stored& own,
                                 const uint32_t (&words)[2][kWords]) {
    CudaPageReport* report = at.batch.reports + at.rows.page;
    const bool sampled = Sampled(at.rows, at.heads.tensor());
    const bool judged = own.clamped || own.unfit;
    if (!sampled && !__any_sync(0xffffffffu, judged)) return;
    // WHY copies: what a function takes by reference lies in local memory, from the start.
    uint32_t rows[kCount], codes[2][kWords];
    memcpy(rows, y, sizeof(rows));
    memcpy(codes, words, sizeof(codes));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Errors errors = ErrorsOf(rows, half, Of(half, own.unit), Of(half, own.scale.value),
                                     Of(half, own.zero), codes[half]);
      if (!at.rows.Has(half) || LaneColumn() != static_cast<uint32_t>(half)) continue;
      if (sampled && errors.energy <= kWorst) {
        atomicAdd(&report->rows[1], 1u);
        atomicAdd(&report->error[1], errors.error);
        atomicAdd(&report->energy[1], errors.energy);
      }
      const bool clamped =
          own.clamped && errors.error > static_cast<float>(kUnfitShare) * errors.energy;
      if (own.unfit || clamped) atomicAdd(&report->unfit, 1u);
    }
  }

  __device__ static void Quantise(const Context& at, uint32_t (&y)[kCount]) {
    const typename Affine::Range all = Affine::RangeOf(y);
    const int mine = static_cast<int>(LaneColumn() & 1);
    const typename Range::Extremes ends = {HalfOf(all.low, mine), HalfOf(all.high, mine)};
    typename Range::Start own = Range::StartOf(ends);
    // Rotated rows saturate: at the largest BF16 there may have been an infinity.
    constexpr float kSaturated = 0x1.fep127f;
    own.fit.finite = fabsf(ends.low) < kSaturated && fabsf(ends.high) < kSaturated;
    const uint32_t finite = (Of(0, own.fit.finite ? 1.0f : 0.0f) != 0.0f ? 1u : 0u) |
                            (Of(1, own.fit.finite ? 1.0f : 0.0f) != 0.0f ? 2u : 0u);
    if (!__all_sync(0xffffffffu, finite == 3)) {
      ReportRows<kDim>(at.batch.reports + at.rows.page, at.walk, at.rows, at.heads.tensor(),
                       finite);
    }
    Sums sums;
    if (at.draft) {
      Pass<1>(own, y, &sums);
    } else {
      Pass<kRangeSteps>(own, y, &sums);
    }
    Gather2(sums.sum, mine, &own.fit.sum);
    Gather2(sums.energy, mine, &own.fit.energy);
    if (!at.draft) {
      float errors[kRangeSteps];
#pragma unroll
      for (int k = 0; k < kRangeSteps; ++k) Gather2(sums.errors[k], mine, &errors[k]);
      Range::Choose(kRangeSteps, errors, &own.fit);
    }
    const float unit = own.fit.unit == 0.0f ? 1.0f : own.fit.unit;
    const StoredScale scale = StoreScale(at.scales, own.fit.scale * unit);
    const StoredScale zero = StoreZero<kBits>(own.fit.zero);
    const float steep = unit * __frcp_rn(scale.value) * (1.0f / Grid::kTop);
    const float shift = zero.value * (1.0f / Grid::kTop);
    uint32_t words[2][kWords];
    Both<float> along;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      along[half] = Codes(y, half, Of(half, steep), Of(half, shift), words[half]);
    }
    float own_along;
    Gather2(along, mine, &own_along);
    const Stored stored = Finish(own.fit, scale, zero, own_along, at.scales);
    Store(at, stored, mine, words);
    Account(at, y, stored, words);
  }

  // Sums of both rows over the quad; this lane's.
  __device__ static void Gather2(const float (&of)[2], int mine, float* out) {
    // Lanes swap the halves that the other one works on, then add up.
    const float keep = mine == 0 ? of[0] : of[1], give = mine == 0 ? of[1] : of[0];
    const float both = keep + __shfl_xor_sync(0xffffffffu, give, 1);
    *out = both + __shfl_xor_sync(0xffffffffu, both, 2);
  }

  __device__ static void Store(const Context& at, const Stored& own, int mine,
                               const uint32_t (&words)[2][kWords]) {
    const uint32_t row = at.rows.first + LaneRow(), code_bytes = at.heads.code_row_bytes();
    uint8_t* codes = at.rows.block + row * code_bytes + LaneColumn() * (4 * kWords);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (at.rows.Has(half)) Affine::StoreWords(codes + 8 * half * code_bytes, words[half]);
    }
    if (LaneColumn() >= 2 || !at.rows.Has(mine)) return;
    *reinterpret_cast<uint16_t*>(at.rows.block + at.heads.meta_offset() + 2 * (row + 8 * mine)) =
        static_cast<uint16_t>(own.scale.index | own.zero_index << 8);
  }

  __device__ static void Run(const CudaBatch& batch, const CudaCrumbSearch& search, bool follows,
                             const CudaHeads* heads_table, uint32_t heads_count,
                             const float* scales) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    auto* shared = reinterpret_cast<Shared*>(shared_bytes);
    const uint32_t base = SharedAddress(shared_bytes);
    const uint32_t warp = threadIdx.x / 32;
    const Gather<kDim> gather(base + offsetof(Shared, gathers) + warp * kGatherBytes<kDim>);
    const uint32_t ring = base + offsetof(Shared, rings) + warp * sizeof(RowRing);
    const HeadsAt heads(base + offsetof(Shared, heads));
    const bool draft = search.effort == kEffortDraft;
    gather.Prepare();
    LetNextBegin();
    for (uint32_t h = blockIdx.y; h < heads_count; h += gridDim.y) {
      __syncthreads();
      StartImage<kDim>(heads_table[h].image, base + offsetof(Shared, image));
      // What K's launch waited for has ended, and nothing here needs K.
      if (!follows) AwaitEarlier();
      LoadHeads(batch, heads_table[h], &shared->heads);
      __syncthreads();
      const RowWalk walk(batch, heads, ring, blockIdx.x * kTiles + TileOfBlock(),
                         gridDim.x * kTiles);
      // Under the copy of the image.
      gather.StartFirst(batch, walk);
      WaitForImage<1>();
      for (uint32_t n = 0; n < walk.count(); ++n) {
        Gather<kDim>::Wait();
        uint32_t y[kCount];
        {
          uint32_t a[kDim / 16][4];
          float d[Affine::kPassN / 2];
          const uint32_t image = base + static_cast<uint32_t>(offsetof(Shared, image));
          gather.Take(a);
          StartProduct<kDim / 16, Affine::kPassN>(a, image, d);
          // Not before: what was gathered is taken.
          __syncwarp();
          walk.LookUp(n + 1);
          if (n + 1 < walk.count()) gather.Start(batch, walk, walk.Rows(n + 1));
          Affine::template FinishRotate<true>(a, image, d, y);
        }
        Tile({batch, heads, walk, walk.Rows(n), scales, draft}, y);
      }
    }
    if (follows) AwaitEarlier();
  }

 private:
  __device__ static void Tile(const Context& at, uint32_t (&y)[kCount]) {
    // A warp past the last head of a page list has no block, one past a page's rows no tokens.
    if (at.rows.block == nullptr) return;
    if (at.rows.tokens > at.rows.first) Quantise(at, y);
    const uint32_t end = at.rows.first + kCudaRowsPerWarp;
    if (end >= at.batch.page_tokens || end > at.rows.tokens) {
      ClearRest(at.batch.page_tokens, at.heads, at.rows);
    }
  }
};

template <int kDim, int kBits>
__global__ void __launch_bounds__(CrumbValuesKernel<kDim, kBits>::kThreads,
                                  CrumbValuesKernel<kDim, kBits>::kBlocks)
    CrumbValues(const __grid_constant__ CudaBatch batch,
                const __grid_constant__ CudaCrumbSearch search, bool follows,
                const CudaHeads* heads, uint32_t heads_count, const float* scales) {
  CrumbValuesKernel<kDim, kBits>::Run(batch, search, follows, heads, heads_count, scales);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_VALUES_CUH_
