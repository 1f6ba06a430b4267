// One head of a `crumb` page by vector kernels. Any thread.
#include "gpu/codec/vector_crumb_head.h"

#include <algorithm>
#include <cstring>

#include "gpu/codec/crumb_bases.h"
#include "gpu/codec/row_frame.h"
#include "gpu/codec/vector_crumb_rows.h"
#include "gpu/codec/vector_decode.h"
#include "gpu/codec/vector_rotate.h"

namespace crumb {
namespace {

// Work of one Encode call. Nothing is added to the job's report before the end, so that the
// reference can still take over.
class HeadEncoder {
 public:
  HeadEncoder(const CodecPlan& plan, const VectorPlan::Head& head, const HeadEncodeJob& job,
              CodecScratch* scratch)
      : plan_(plan),
        job_(job),
        tensor_(plan.layout().tensors()[job.ref.tensor]),
        scratch_(scratch),
        rows_(job.ref.tokens),
        clock_(scratch->phases) {
    rotation_.rotation = head.rotation.get();
    rotation_.rows = rows_;
    rotation_.dim = tensor_.dim;
    search_.tensor = &tensor_;
    search_.metric = head.metric.get();
    search_.effort = job.effort;
  }

  // False: some value is outside what the kernels take, and the block is to be encoded again.
  bool Run(const VectorKernels& kernels, const QueryMetric& metric, double gamma) {
    rotation_.kernels = &kernels;
    search_.kernels = &kernels;
    search_.reference = &metric;
    search_.gamma = gamma;
    if (!(tensor_.is_v ? Quantise(nullptr, 0) : EncodeK())) return false;
    Store();
    return true;
  }

 private:
  const uint16_t* X() const { return reinterpret_cast<const uint16_t*>(job_.rows.data()); }

  bool Quantise(const float* base, uint8_t flag) {
    clock_.Lap(CodecPhase::kQuantise);
    rotation_.base = base;
    const uint16_t* y = RotateRows(rotation_, X(), &scratch_->vector);
    clock_.Lap(CodecPhase::kRotate);
    if (y == nullptr) return false;
    CrumbRow* results = scratch_->crumb_rows.data();
    QuantiseCrumbRows(search_,
                      {.y = y, .rows = rows_, .packed = job_.block.data(), .results = results},
                      scratch_);
    for (uint32_t row = 0; row < rows_; ++row) results[row].z8 |= flag;
    clock_.Skip();
    return true;
  }

  bool EncodeK() {
    const absl::Span<const float> mean = plan_.MeanOf(job_.ref.tensor, job_.ref.head);
    const MutableBytes side = job_.block.subspan(tensor_.side_offset, tensor_.side_bytes);
    const float* base_static = mean.empty() ? nullptr : mean.data();
    if (side.empty()) {
      const bool flagged = plan_.descriptor().centring != Centring::kNone;
      return Quantise(base_static, flagged ? kCrumbStaticFlag : 0);
    }
    StorePageMean(base_static, side);
    LoadCrumbBases(tensor_, mean, side, scratch_);
    clock_.Lap(CodecPhase::kRotate);
    if (!Quantise(scratch_->base_page.data(), 0)) return false;
    const size_t count = ChooseRetries(job_.effort, rows_, scratch_);
    return count == 0 || RetryStatic(static_cast<uint32_t>(count), base_static);
  }

  // The same sums in the same order as the reference's.
  void StorePageMean(const float* base, MutableBytes side) {
    const size_t dim = tensor_.dim;
    const auto mean = absl::MakeSpan(scratch_->mean).first(dim);
    const auto p8 = absl::MakeSpan(scratch_->mean8).first(dim);
    std::fill(mean.begin(), mean.end(), 0.0);
    rotation_.kernels->column_sums(
        {.x = X(), .base = base, .rows = rows_, .dim = tensor_.dim, .out = nullptr}, mean.data());
    for (double& value : mean) value /= rows_;
    const uint16_t sigma = QuantisePageMean(mean, p8);
    std::memcpy(side.data(), p8.data(), dim);
    std::memcpy(side.data() + dim, &sigma, sizeof(sigma));
  }

  bool RetryStatic(uint32_t count, const float* base) {
    const size_t row_bytes = tensor_.raw_row_bytes;
    VectorWork& work = scratch_->vector;
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(work.retry.data() + size_t{i} * tensor_.dim,
                  job_.rows.data() + scratch_->retry[i] * row_bytes, row_bytes);
    }
    rotation_.base = base;
    rotation_.rows = count;
    const uint16_t* y = RotateRows(rotation_, work.retry.data(), &work);
    clock_.Lap(CodecPhase::kRotate);
    if (y == nullptr) return false;
    CrumbRow* trials = scratch_->crumb_trials.data();
    QuantiseCrumbRows(search_,
                      {.y = y, .rows = count, .packed = work.packed.data(), .results = trials},
                      scratch_);
    for (uint32_t i = 0; i < count; ++i) {
      CrumbRow& row = scratch_->crumb_rows[scratch_->retry[i]];
      if (!(trials[i].metric_error < row.metric_error)) continue;
      row = trials[i];
      row.z8 |= kCrumbStaticFlag;
      std::memcpy(job_.block.data() + size_t{scratch_->retry[i]} * tensor_.code_row_bytes,
                  work.packed.data() + size_t{i} * tensor_.code_row_bytes, tensor_.code_row_bytes);
    }
    clock_.Skip();
    return true;
  }

  void Store() {
    EncodeReport& report = *job_.report;
    for (uint32_t row = 0; row < rows_; ++row) {
      const CrumbRow& r = scratch_->crumb_rows[row];
      uint8_t* meta = job_.block.data() + tensor_.meta_offset + row * tensor_.meta_row_bytes;
      meta[0] = r.s8;
      meta[1] = r.z8;
      (tensor_.is_v ? report.error_v : report.error_k) += r.plain_error;
      if (!tensor_.is_v) report.metric_error_k += r.metric_error;
      report.rows_static += (r.z8 & kCrumbStaticFlag) != 0 ? 1 : 0;
      if (!r.clamped) continue;
      ++report.rows_clamped;
      if (r.plain_error > kRowErrorMax * std::max(Energy(row), r.energy)) report.fits = false;
    }
    (tensor_.is_v ? report.energy_v : report.energy_k) += job_.scan.energy;
    clock_.Lap(CodecPhase::kPack);
  }

  // Of a row as put.
  double Energy(uint32_t row) {
    const auto x = absl::MakeSpan(scratch_->row_work).first(tensor_.dim);
    LoadRows(job_.rows.subspan(size_t{row} * tensor_.raw_row_bytes, tensor_.raw_row_bytes), x);
    return SumOfSquares(x);
  }

  const CodecPlan& plan_;
  const HeadEncodeJob& job_;
  const TensorLayout& tensor_;
  CodecScratch* scratch_;
  const uint32_t rows_;
  PhaseClock clock_;
  VectorRotation rotation_;
  VectorCrumbSearch search_;
};

}  // namespace

void VectorCrumbHead::Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                             CodecScratch* scratch) const {
  const TensorLayout& tensor = plan.layout().tensors()[job.ref.tensor];
  if (VectorPlan::Takes(tensor) && Comfortable(job.scan)) {
    HeadEncoder encoder(plan, vectors_.head(job.ref.tensor, job.ref.head), job, scratch);
    const QueryMetric& metric = (*metrics_)[job.ref.tensor][job.ref.head];
    if (encoder.Run(vectors_.kernels(), metric, gamma_)) return;
    std::memset(job.block.data(), 0, job.block.size());
  }
  reference_.Encode(plan, job, scratch);
}

void VectorCrumbHead::Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                             CodecScratch* scratch) const {
  const TensorLayout& tensor = plan.layout().tensors()[job.ref.tensor];
  if (!VectorPlan::Takes(tensor)) return reference_.Decode(plan, job, scratch);
  const CrumbGrid grid = CrumbGridOf(tensor.pack.bits);
  const uint8_t* meta = job.block.data() + tensor.meta_offset;
  for (uint32_t row = 0; row < job.ref.tokens; ++row) {
    scratch->vector.row_scale[row] = kCrumbScale[meta[2 * row]];
    scratch->vector.row_zero[row] = CrumbZero(grid, meta[2 * row + 1]);
  }
  VectorBases bases;
  const absl::Span<const float> mean = plan.MeanOf(job.ref.tensor, job.ref.head);
  const bool based = !tensor.is_v && plan.descriptor().centring != Centring::kNone;
  const bool paged = based && tensor.side_bytes != 0;
  if (based && (paged || !mean.empty())) {
    LoadCrumbBases(tensor, mean, job.block.subspan(tensor.side_offset, tensor.side_bytes), scratch);
    const auto& page = paged ? scratch->base_page : scratch->base_static;
    if (!ComfortableBase(absl::MakeConstSpan(page).first(tensor.dim)) || !ComfortableBase(mean)) {
      return reference_.Decode(plan, job, scratch);
    }
    bases.base[0] = page.data();
    bases.base[1] = scratch->base_static.data();
    bases.flags = meta + 1;
  }
  DecodeRows(plan, vectors_, job, bases, scratch);
}

}  // namespace crumb
