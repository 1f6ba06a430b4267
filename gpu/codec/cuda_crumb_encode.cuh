// The crumb encode kernel of K: gather -> page mean -> rotate -> range -> codes with feedback ->
// gain -> pack in one pass. A warp encodes one head of one page after the other, 32 rows at a time,
// one in each lane, and needs no other warp; the tables of a head lie in the block's shared memory.
// Rows to be tried with the static mean wait until there are 32 of them. Device code.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_ENCODE_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_ENCODE_CUH_

#include "gpu/codec/cuda_crumb_account.cuh"

namespace crumb::cuda {

inline constexpr uint8_t kEffortDraft = 0, kEffortNormal = 1, kEffortBest = 2;
inline constexpr float kWorst = 3e38f;

// What all warps of a block read in shared memory, and how its warps' shares follow.
template <int kDim, int kBits, bool kSearch>
struct CrumbBlock {
  using Share = CrumbShare<kDim, kBits, kSearch>;
  static constexpr bool kLowerShared = CrumbCodes<kDim, kBits, kSearch>::kLowerShared;
  static constexpr bool kImageShared = CrumbRows<kDim, kBits, kSearch>::kImageShared;
  static constexpr uint32_t kImage = 0;
  static constexpr uint32_t kLower = kImageShared ? kDim * kDim * 2 : 0;
  static constexpr uint32_t kTriangle =
      kLower + (kSearch && kLowerShared ? CrumbLowerBytes(kDim) : 0);
  static constexpr uint32_t kDiagonal = kTriangle + (kSearch ? CrumbTriangleBytes(kDim) : 0);
  static constexpr uint32_t kMean = kDiagonal + (kSearch ? 4 * kDim : 0);
  static constexpr uint32_t kHeads = kMean + 4 * kDim;
  static constexpr uint32_t kNext = kHeads + sizeof(BlockHeads);  // unit that no warp has taken
  static constexpr uint32_t kShares = kNext + 16;
  static_assert(kTriangle % 16 == 0 && kHeads % 16 == 0 && sizeof(BlockHeads) % 16 == 0);
  static constexpr uint32_t Bytes(uint32_t warps, uint32_t page_tokens) {
    return kShares + warps * Share::Bytes(page_tokens);
  }
};

template <int kDim, int kBits, bool kSearch>
class CrumbWarp {
 public:
  using Share = CrumbShare<kDim, kBits, kSearch>;
  using Block = CrumbBlock<kDim, kBits, kSearch>;
  using Codes = CrumbCodes<kDim, kBits, kSearch>;

  __device__ CrumbWarp(const CudaBatch& batch, const CudaCrumbSearch& search, const float* scales,
                       uint32_t base)
      : batch_(batch),
        search_(search),
        scales_(scales),
        heads_(base + Block::kHeads),
        mean_(base + Block::kMean),
        share_(base + Block::kShares + threadIdx.x / 32 * Share::Bytes(batch.page_tokens)),
        rows_(share_, base + Block::kImage),
        codes_(share_) {
    metric_.lower_shared = base + Block::kLower;
    metric_.triangle = base + Block::kTriangle;
    metric_.diagonal = base + Block::kDiagonal;
    rows_.Clear();
  }

  // The block works on other heads now, and these are their tables.
  __device__ void Start(const void* image, const void* metric) {
    rows_.SetImage(image);
    metric_.lower = static_cast<const uint4*>(metric);
    has_side_ = heads_.has_side();
  }

  // One head of a page. `flush`: instead, the rows that wait for their trial; before the block
  // leaves these heads. WHY one function, and one loop in it: a second place that quantises would
  // double the kernel's code.
  __device__ void Encode(uint32_t page, uint32_t head, bool flush) {
    CrumbUnit unit = {};
    uint32_t groups = 0, steps = waiting_ != 0 ? 1 : 0;
    if (!flush) {
      unit = UnitAt(batch_, heads_, page, head);
      groups = (unit.tokens + kCrumbRows - 1) / kCrumbRows;
      steps = has_side_ ? 2 * groups : groups;
      if (has_side_) FindPageMean(unit, groups);
    }
    float bound = 0.0f;
    for (uint32_t step = 0; step < steps; ++step) {
      Job job;
      if (step < groups) {
        job = GroupJob(unit, groups - 1 - step);
      } else {
        if (step == groups) bound = BoundOf(unit);
        if (!flush) LineUp(unit, step - groups, bound);
        if (waiting_ < (flush ? 1 : kCrumbRows)) continue;
        job = RetryJob(min(waiting_, kCrumbRows));
      }
      const Row row = Quantise(job);
      if (step < groups) {
        FinishGroup(job, row);
      } else {
        FinishRetry(job, row);
      }
    }
    if (!flush) ClearUnit(heads_, unit, kDim + 2);
  }

 private:
  struct Row {
    uint32_t s8, z8;
    float metric_error;
    float plain_error;  // only where it was asked for
    bool finite, clamped, unfit;
  };

  // 32 gathered rows, one in each lane.
  struct Job {
    CrumbUnit unit;  // of this lane's row
    uint32_t row;
    uint32_t base;  // shared memory
    bool has;       // the lane has a row
    bool sampled;
    float metric_error, plain_error;  // of a retry: with the page mean
  };

  __device__ uint64_t AddressOf(const CrumbUnit& unit, uint32_t row) const {
    return row < unit.tokens ? RawRowOf(batch_, heads_, unit.page, unit.head, row) : 0;
  }
  __device__ void Gather(const CrumbUnit& unit, uint32_t row) {
    address_ = AddressOf(unit, row);
    rows_.Start(batch_.aligned != 0, address_, rows_.OwnPlace());
    rows_.Wait();
  }

  __device__ void FindPageMean(const CrumbUnit& unit, uint32_t groups) {
    float sums[kDim / 32] = {};
    for (uint32_t g = 0; g < groups; ++g) {
      // WHY two groups at once: there is room for the rows of one more, and only one wait.
      const bool two = kSearch && g + 1 < groups;
      if (two) {
        rows_.Start(batch_.aligned != 0, AddressOf(unit, g * kCrumbRows + Lane()),
                    rows_.OtherPlace());
        ++g;
      }
      Gather(unit, g * kCrumbRows + Lane());
      if (two) rows_.AddColumns(rows_.OtherPlace(), kCrumbRows, sums);
      rows_.AddColumns(rows_.OwnPlace(), min(kCrumbRows, unit.tokens - g * kCrumbRows), sums);
    }
    rows_.StorePageMean(unit, heads_, mean_, sums);
  }

  // With the page mean where there is one.
  __device__ Job GroupJob(const CrumbUnit& unit, uint32_t group) {
    Job job = {};
    job.unit = unit;
    job.row = group * kCrumbRows + Lane();
    job.base = has_side_ ? rows_.PageBase() : mean_;
    job.has = job.row < unit.tokens;
    job.sampled = SampledRow(unit.page, unit.head, group * kCrumbRows, heads_.tensor());
    // The last rows lie there since the mean was taken.
    const bool there = has_side_ && (group + 1) * kCrumbRows >= unit.tokens;
    if (!there) Gather(unit, job.row);
    if (job.sampled) {
      const float energy = rows_.Energy();
      CudaPageReport* report = batch_.reports + unit.page;
      // A sum with what is no number would be none.
      job.sampled = energy <= kWorst;
      if (job.has && job.sampled) {
        atomicAdd(&report->rows[0], 1u);
        atomicAdd(&report->energy[0], energy);
      }
    }
    return job;
  }

  __device__ void FinishGroup(const Job& job, const Row& row) {
    CudaPageReport* report = batch_.reports + job.unit.page;
    const bool flagged = !has_side_ && search_.flags_static != 0;
    if (job.has) Store(job.unit.block, job.row, row, flagged);
    Complain(report, job.unit, job.row, job.has && !row.finite);
    if (has_side_) {
      if (job.has) RememberErrors(job.row, row);
      __syncwarp();
      return;
    }
    Settle(report, job.has, row.unfit, job.sampled, row.plain_error);
    const uint32_t count = __popc(__ballot_sync(0xffffffffu, job.has));
    if (flagged && Lane() == 0) atomicAdd(&report->rows_static, count);
  }

  // Not finite once rotated: a NaN or an infinity in the row, or in one that made the mean.
  __device__ void Complain(CudaPageReport* report, const CrumbUnit& unit, uint32_t row, bool bad) {
    if (!bad) return;
    if (LookAtRaw<kDim>(address_).finite) {
      atomicAdd(&report->unfit, 1u);
    } else {
      ReportBadRow(report, heads_.tensor(), unit.head, row);
    }
  }

  // What a row adds to its page's report once it is decided.
  __device__ void Settle(CudaPageReport* report, bool has, bool unfit, bool sampled,
                         float error) const {
    if (has && unfit) atomicAdd(&report->unfit, 1u);
    if (has && sampled) atomicAdd(&report->error[0], error);
  }

  // Of a row that waits: page, metric error, and its row with the plain error as BF16 (sign:
  // unfit).
  __device__ uint32_t RetryAt(uint32_t i) const {
    return share_ + Share::kRetries + kCrumbRetryBytes * i;
  }
  __device__ uint32_t MetricAt() const { return share_ + Share::kRowErrors; }
  __device__ uint32_t PlainAt() const { return MetricAt() + 4 * batch_.page_tokens; }

  __device__ void RememberErrors(uint32_t row, const Row& out) const {
    ToShared(MetricAt() + 4 * row, out.metric_error);
    ToShared(PlainAt() + 4 * row, out.unfit ? -out.plain_error : out.plain_error);
  }

  // Rows of the page that err more than this are tried with the static mean.
  __device__ float BoundOf(const CrumbUnit& unit) const {
    if (search_.effort == kEffortBest) return -1.0f;
    if (search_.effort == kEffortDraft) return kWorst;
    return TwiceMedianBound(MetricAt(), unit.tokens);
  }

  // Rows of a group: those that are to be tried wait for more, the others are decided.
  __device__ void LineUp(const CrumbUnit& unit, uint32_t group, float bound) {
    const uint32_t row = group * kCrumbRows + Lane();
    const bool has = row < unit.tokens;
    const float metric = has ? FromShared<float>(MetricAt() + 4 * row) : 0.0f;
    const float plain = has ? FromShared<float>(PlainAt() + 4 * row) : 0.0f;
    const bool waits = has && metric > bound;
    const bool sampled = SampledRow(unit.page, unit.head, group * kCrumbRows, heads_.tensor());
    Settle(batch_.reports + unit.page, has && !waits, signbit(plain), sampled, fabsf(plain));
    const uint32_t all = __ballot_sync(0xffffffffu, waits);
    if (waits) {
      const uint32_t at = RetryAt(waiting_ + __popc(all & ((1u << Lane()) - 1)));
      ToShared(at, unit.page);
      ToShared(at + 4, metric);
      ToShared(at + 8, row << 16 | PackBf16(plain, 0.0f));
    }
    waiting_ += __popc(all);
    __syncwarp();
  }

  // The last `count` rows that wait, with the static mean.
  __device__ Job RetryJob(uint32_t count) {
    waiting_ -= count;
    Job job = {};
    job.base = mean_;
    job.has = Lane() < count;
    if (job.has) {
      const uint32_t at = RetryAt(waiting_ + Lane());
      const uint32_t packed = FromShared<uint32_t>(at + 8);
      job.unit = UnitAt(batch_, heads_, FromShared<uint32_t>(at), heads_.first());
      job.row = packed >> 16;
      job.metric_error = FromShared<float>(at + 4);
      job.plain_error = LowBf16(packed);
      job.sampled =
          SampledRow(job.unit.page, heads_.first(), job.row & ~(kCrumbRows - 1), heads_.tensor());
    }
    Gather(job.unit, job.row);
    return job;
  }

  __device__ void FinishRetry(const Job& job, const Row& row) {
    const bool better = job.has && row.finite && row.metric_error < job.metric_error;
    CudaPageReport* report = batch_.reports + job.unit.page;
    if (better) {
      Store(job.unit.block, job.row, row, true);
      atomicAdd(&report->rows_static, 1u);
    }
    Settle(report, job.has, better ? row.unfit : signbit(job.plain_error), job.sampled,
           better ? row.plain_error : fabsf(job.plain_error));
    __syncwarp();
  }

  __device__ void Store(uint8_t* block, uint32_t row, const Row& out, bool flagged) const {
    uint32_t words[Codes::kWords];
    codes_.Take(words);
    uint8_t* to = block + row * Share::kCodeBytes;
#pragma unroll
    for (int i = 0; i < Codes::kWords; i += Share::kCodeBytes % 16 == 0 ? 4 : 2) {
      if constexpr (Share::kCodeBytes % 16 == 0) {
        *reinterpret_cast<uint4*>(to + 4 * i) =
            make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
      } else {
        *reinterpret_cast<uint2*>(to + 4 * i) = make_uint2(words[i], words[i + 1]);
      }
    }
    const uint32_t meta = out.s8 | (out.z8 | (flagged ? 0x80u : 0u)) << 8;
    *reinterpret_cast<uint16_t*>(block + heads_.meta_offset() + 2 * row) =
        static_cast<uint16_t>(meta);
  }

  struct Candidate {
    StoredScale scale, zero;
    CrumbSums sums;
  };

  // `alone`: there are no others to choose from.
  __device__ CrumbSums CodesOf(const CrumbFit& fit, const Candidate& candidate, float per_unit,
                               bool alone) {
    const float scale = candidate.scale.value * per_unit;
    if constexpr (kSearch) {
      return alone ? codes_.template Feedback<true>(metric_, scale, candidate.zero.value)
                   : codes_.template Feedback<false>(metric_, scale, candidate.zero.value);
    }
    return codes_.Plain(fit, scale, candidate.zero.value);
  }

  // K at effort best: a scale near the first one.
  __device__ void Stretch(const CrumbFit& fit, int k, Candidate* trial) const {
    using Grid = CrumbLevelGrid<kBits>;
    const float multiple = k == 0 ? 0.85f : k == 1 ? 1.0f : k == 2 ? 1.15f : 1.3f;
    const StoredScale scale = StoreScale(scales_, multiple * trial->scale.value);
    trial->scale = {scale.index, scale.value, scale.clamped || trial->scale.clamped};
    // A row of zeros keeps the zero that its code stands for.
    if (fit.unit == 0.0f) return;
    const StoredScale zero =
        StoreZero<kBits>(Grid::kMid + __fdividef(trial->zero.value - Grid::kMid, multiple));
    trial->zero = {zero.index, zero.value, zero.clamped || trial->zero.clamped};
  }

  // Gathered rows to codes in shared memory.
  __device__ Row Quantise(const Job& job) {
    rows_.Rotate(job.base);
    const bool draft = search_.effort == kEffortDraft;
    const CrumbFit fit =
        CrumbRange<kDim, kBits>::template Find<kSearch>(rows_.Row(), draft ? 1 : 4);
    __syncwarp();
    const float unit = fit.unit == 0.0f ? 1.0f : fit.unit;
    const float per_unit = __uint_as_float(0x7f000000u - __float_as_uint(unit));
    Candidate start;
    start.scale = StoreScale(scales_, fit.scale * unit);
    start.zero = StoreZero<kBits>(fit.zero);
    const int count = search_.effort == kEffortBest ? 4 : 1;
    Candidate best = {};
    uint32_t words[Codes::kWords] = {};
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      Candidate trial = start;
      if (count > 1) Stretch(fit, k, &trial);
      trial.sums = CodesOf(fit, trial, per_unit, count == 1);
      if (k != 0 && !(trial.sums.ee < best.sums.ee)) continue;
      best = trial;
      codes_.Take(words);
    }
    codes_.Put(words);
    __syncwarp();
    if constexpr (kSearch) {
      if (count > 1) {
        best.sums = codes_.Gain(metric_, best.scale.value * per_unit, best.zero.value);
      }
    }
    return Finished(fit, best, unit, job);
  }

  // The gain, the scale that is stored, and the errors of what a decoder will see.
  __device__ Row Finished(const CrumbFit& fit, const Candidate& best, float unit,
                          const Job& job) const {
    Row row = {};
    row.finite = fit.finite;
    row.z8 = best.zero.index;
    if (fit.unit == 0.0f) {  // zeros, or nothing that a level comes near
      row.s8 = fit.large ? 255 : 0;
      row.metric_error = fit.large ? kWorst : 0.0f;
      row.unfit = !fit.ordinary && fit.finite;
      // What is left of a row after its base may be next to nothing: zeros are as good.
      if (row.unfit && !fit.large && job.has) {
        constexpr float kLost = kDim * 0x1p-80f;
        row.unfit = kLost > static_cast<float>(kUnfitShare) * LookAtRaw<kDim>(address_).energy;
      }
      return row;
    }
    const CrumbSums& sums = best.sums;
    const float kept = sums.yy - sums.ye;
    const bool guarded = !(kept >= 0.3f * sums.yy);
    const float share = search_.gamma;
    const float gain = guarded ? 1.0f : 1.0f + share * (__fdividef(sums.yy, kept) - 1.0f);
    const StoredScale scale = StoreScale(scales_, best.scale.value * gain);
    row.s8 = scale.index;
    row.clamped = best.scale.clamped || best.zero.clamped || scale.clamped || guarded;
    // e turns into y - ratio (y - e).
    const float ratio = __fdividef(scale.value, best.scale.value), rest = 1.0f - ratio;
    const float error =
        rest * rest * sums.yy + 2.0f * ratio * rest * sums.ye + ratio * ratio * sums.ee;
    row.metric_error = fminf(fmaxf(error, 0.0f) * unit * unit, kWorst);
    const bool judged = job.has && row.clamped;
    if (job.sampled || judged) {
      const cuda::PlainErrors errors = PlainErrorsOf(codes_, unit, scale.value, best.zero.value);
      row.plain_error = errors.error;
      if (judged) {
        const float energy = fmaxf(errors.energy, LookAtRaw<kDim>(address_).energy);
        row.unfit = errors.error > static_cast<float>(kUnfitShare) * energy;
      }
    }
    return row;
  }

  const CudaBatch& batch_;
  const CudaCrumbSearch& search_;
  const float* scales_;
  const HeadsAt heads_;
  const uint32_t mean_, share_;
  CrumbRows<kDim, kBits, kSearch> rows_;
  const Codes codes_;
  CrumbMetricAt metric_ = {};
  bool has_side_ = false;
  uint32_t waiting_ = 0;
  uint64_t address_ = 0;  // of this lane's row; 0: none
};

template <int kDim, int kBits, bool kSearch>
struct CrumbEncodeKernel {
  using Block = CrumbBlock<kDim, kBits, kSearch>;

  // Ends with a barrier.
  __device__ static void LoadTables(const CudaHeads& heads, const void* last_image, uint32_t base) {
    if constexpr (Block::kImageShared) {
      if (heads.image != last_image) StartImage<kDim>(heads.image, base + Block::kImage);
    }
    for (uint32_t i = threadIdx.x; i < kDim; i += blockDim.x) {
      const float* mean = heads.tensor.mean;
      const uint32_t at = heads.first * heads.tensor.mean_step + i;
      ToShared(base + Block::kMean + 4 * i, mean == nullptr ? 0.0f : mean[at]);
    }
    if constexpr (kSearch) {
      constexpr uint32_t kSkipped = Block::kLowerShared ? 0 : CrumbLowerBytes(kDim);
      const auto* metric = static_cast<const uint8_t*>(heads.metric) + kSkipped;
      for (uint32_t i = 16 * threadIdx.x; i < CrumbMetricBytes(kDim) - kSkipped;
           i += 16 * blockDim.x) {
        CopyAsync16(base + Block::kLower + i, metric + i);
      }
      CopyAsyncCommit();
    }
    WaitForImage<0>();
  }

  // The next unit of these heads for a warp.
  __device__ static uint32_t Take(uint32_t base) {
    uint32_t n = 0;
    if (Lane() == 0) {
      asm volatile("atom.shared.add.u32 %0, [%1], 1;"
                   : "=r"(n)
                   : "r"(base + Block::kNext)
                   : "memory");
    }
    return __shfl_sync(0xffffffffu, n, 0);
  }

  // Every block has its own run of units, through all heads: few tables to load, and few rows that
  // are tried before there are 32 of them.
  __device__ static void Run(const CudaBatch& batch, const CudaCrumbSearch& search,
                             const CudaHeads* heads_table, uint32_t heads_count,
                             const float* scales) {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    const uint32_t base = SharedAddress(shared_bytes);
    // WHY in this order: V begins where this kernel ends and waits for nothing that came before it.
    AwaitEarlier();
    LetNextBegin();
    CrumbWarp<kDim, kBits, kSearch> warp(batch, search, scales, base);
    const auto share = [&](uint32_t block) {
      return static_cast<uint32_t>(uint64_t{search.units} * block / gridDim.x);
    };
    const uint32_t begin = share(blockIdx.x), end = share(blockIdx.x + 1);
    const void* image = nullptr;
    uint32_t first = 0;  // unit of the heads
    for (uint32_t h = 0; h < heads_count && first < end; ++h) {
      const CudaHeads& heads = heads_table[h];
      const uint32_t count = heads.count, units = batch.page_count * count;
      const uint32_t from = max(begin, first) - first, to = min(end - first, units);
      first += units;
      if (from >= to) continue;
      __syncthreads();
      LoadHeads(batch, heads, reinterpret_cast<BlockHeads*>(shared_bytes + Block::kHeads));
      if (threadIdx.x == 0) ToShared(base + Block::kNext, from);
      LoadTables(heads, image, base);
      image = heads.image;
      warp.Start(heads.image, heads.metric);
      for (bool flush = false; !flush;) {
        const uint32_t n = Take(base);
        flush = n >= to;
        warp.Encode(n / count, heads.first + n % count, flush);
      }
    }
  }
};

template <int kDim, int kBits, bool kSearch>
__global__ void __launch_bounds__(CrumbWarpsOf<kDim, kSearch>() * 32, 1)
    CrumbEncode(const __grid_constant__ CudaBatch batch,
                const __grid_constant__ CudaCrumbSearch search, const CudaHeads* heads,
                uint32_t heads_count, const float* scales) {
  CrumbEncodeKernel<kDim, kBits, kSearch>::Run(batch, search, heads, heads_count, scales);
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_ENCODE_CUH_
