// One head of a `crumb` page. Any thread.
#include "gpu/codec/crumb_head.h"

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/crumb_bases.h"
#include "gpu/codec/crumb_quantiser.h"
#include "gpu/codec/row_frame.h"

namespace crumb {
namespace {

// Writes p and sigma of the rows' mean distance to the static mean.
void StorePageMean(const TensorLayout& tensor, const HeadEncodeJob& job, MutableBytes side,
                   CodecScratch* scratch) {
  const size_t dim = tensor.dim;
  const auto mean = absl::MakeSpan(scratch->mean).first(dim);
  const auto p8 = absl::MakeSpan(scratch->mean8).first(dim);
  std::fill(mean.begin(), mean.end(), 0.0);
  for (size_t row = 0; row < job.ref.tokens; ++row) {
    const float* x = scratch->rows_x.data() + row * dim;
    for (size_t i = 0; i < dim; ++i) {
      mean[i] += double{DoubleToFloat(double{x[i] - scratch->base_static[i]})};
    }
  }
  for (double& value : mean) value /= job.ref.tokens;
  const uint16_t sigma = QuantisePageMean(mean, p8);
  std::memcpy(side.data(), p8.data(), dim);
  std::memcpy(side.data() + dim, &sigma, sizeof(sigma));
}

// Work of one Encode call.
class HeadEncoder {
 public:
  HeadEncoder(const CodecPlan& plan, const HeadEncodeJob& job, CodecScratch* scratch)
      : plan_(plan),
        job_(job),
        tensor_(plan.layout().tensors()[job.ref.tensor]),
        scratch_(scratch),
        rows_(job.ref.tokens),
        dim_(tensor_.dim),
        clock_(scratch->phases) {}

  void Run(const QueryMetric* metric, double gamma) {
    LoadRows(job_.rows, absl::MakeSpan(scratch_->rows_x).first(rows_ * dim_));
    search_.grid = CrumbGridOf(tensor_.pack.bits);
    search_.is_v = tensor_.is_v;
    search_.effort = job_.effort;
    search_.gamma = gamma;
    if (metric != nullptr) {
      search_.metric = ExpandMetric(*metric, absl::MakeSpan(scratch_->metric_lower));
    }
    frame_.dim = dim_;
    frame_.matrix = scratch_->Expanded(plan_.RotationOf(job_.ref.tensor, job_.ref.head), dim_,
                                       RotateDirection::kForward);
    if (tensor_.is_v) {
      EncodeV();
    } else {
      EncodeK();
    }
    clock_.Lap(CodecPhase::kQuantise);
    Store();
    clock_.Lap(CodecPhase::kPack);
  }

 private:
  absl::Span<const float> X() const {
    return absl::MakeConstSpan(scratch_->rows_x).first(rows_ * dim_);
  }

  // Rotates `x` after subtracting `base` into `y`; a value that does not fit is reported.
  void Rotate(absl::Span<const float> x, absl::Span<const float> base, absl::Span<float> y) {
    clock_.Lap(CodecPhase::kQuantise);
    frame_.base = base;
    if (!ToRotated(frame_, x, y, absl::MakeSpan(scratch_->multiply_work))) {
      job_.report->fits = false;
    }
    clock_.Lap(CodecPhase::kRotate);
  }

  void QuantiseAll(uint8_t flag) {
    for (size_t row = 0; row < rows_; ++row) {
      const auto y = absl::MakeConstSpan(scratch_->rows_y).subspan(row * dim_, dim_);
      const auto codes = absl::MakeSpan(scratch_->codes).subspan(row * dim_, dim_);
      CrumbRow& out = scratch_->crumb_rows[row];
      out = QuantiseCrumbRow(search_, y, codes, &scratch_->crumb_work);
      out.z8 |= flag;
    }
  }

  void EncodeV() {
    Rotate(X(), {}, absl::MakeSpan(scratch_->rows_y).first(rows_ * dim_));
    QuantiseAll(0);
  }

  void EncodeK() {
    const absl::Span<const float> mean = plan_.MeanOf(job_.ref.tensor, job_.ref.head);
    const MutableBytes side = job_.block.subspan(tensor_.side_offset, tensor_.side_bytes);
    LoadCrumbBases(tensor_, mean, {}, scratch_);
    const auto y = absl::MakeSpan(scratch_->rows_y).first(rows_ * dim_);
    const auto base_static = absl::MakeConstSpan(scratch_->base_static).first(dim_);
    if (side.empty()) {
      Rotate(X(), base_static, y);
      QuantiseAll(plan_.descriptor().centring == Centring::kNone ? 0 : kCrumbStaticFlag);
      return;
    }
    StorePageMean(tensor_, job_, side, scratch_);
    LoadCrumbBases(tensor_, mean, side, scratch_);
    Rotate(X(), absl::MakeConstSpan(scratch_->base_page).first(dim_), y);
    QuantiseAll(0);
    const size_t count = ChooseRetries(job_.effort, rows_, scratch_);
    if (count != 0) RetryStatic(count);
  }

  void RetryStatic(size_t count) {
    const auto tried = absl::MakeSpan(scratch_->rows_retry).first(count * dim_);
    for (size_t i = 0; i < count; ++i) {
      const auto x = X().subspan(scratch_->retry[i] * dim_, dim_);
      std::copy(x.begin(), x.end(), tried.begin() + static_cast<ptrdiff_t>(i * dim_));
    }
    const bool fitted = job_.report->fits;
    Rotate(tried, absl::MakeConstSpan(scratch_->base_static).first(dim_), tried);
    // WHY: a trial that overflows is not chosen unless it is better, so it does not count.
    job_.report->fits = fitted;
    const auto codes = absl::MakeSpan(scratch_->codes_retry).first(dim_);
    for (size_t i = 0; i < count; ++i) {
      const size_t row = scratch_->retry[i];
      const auto y = absl::MakeConstSpan(tried).subspan(i * dim_, dim_);
      CrumbRow trial = QuantiseCrumbRow(search_, y, codes, &scratch_->crumb_work);
      if (!(trial.metric_error < scratch_->crumb_rows[row].metric_error)) continue;
      trial.z8 |= kCrumbStaticFlag;
      scratch_->crumb_rows[row] = trial;
      std::copy(codes.begin(), codes.end(),
                scratch_->codes.begin() + static_cast<ptrdiff_t>(row * dim_));
    }
  }

  void Store() {
    EncodeReport& report = *job_.report;
    for (size_t row = 0; row < rows_; ++row) {
      const CrumbRow& r = scratch_->crumb_rows[row];
      PackRow(tensor_.pack, absl::MakeConstSpan(scratch_->codes).subspan(row * dim_, dim_),
              job_.block.subspan(row * tensor_.code_row_bytes, tensor_.code_row_bytes));
      uint8_t* meta = job_.block.data() + tensor_.meta_offset + row * tensor_.meta_row_bytes;
      meta[0] = r.s8;
      meta[1] = r.z8;
      const double energy = SumOfSquares(X().subspan(row * dim_, dim_));
      (tensor_.is_v ? report.error_v : report.error_k) += r.plain_error;
      (tensor_.is_v ? report.energy_v : report.energy_k) += energy;
      if (!tensor_.is_v) report.metric_error_k += r.metric_error;
      report.rows_static += (r.z8 & kCrumbStaticFlag) != 0 ? 1 : 0;
      if (!r.clamped) continue;
      ++report.rows_clamped;
      if (r.plain_error > kRowErrorMax * std::max(energy, r.energy)) report.fits = false;
    }
  }

  const CodecPlan& plan_;
  const HeadEncodeJob& job_;
  const TensorLayout& tensor_;
  CodecScratch* scratch_;
  const size_t rows_;
  const size_t dim_;
  PhaseClock clock_;
  CrumbSearch search_;
  RowFrame frame_;
};

// Rows of the rotated frame to the original one, base and all.
void Restore(const CodecPlan& plan, const HeadDecodeJob& job, absl::Span<float> rows,
             CodecScratch* scratch) {
  const HeadRef& ref = job.ref;
  const TensorLayout& tensor = plan.layout().tensors()[ref.tensor];
  const size_t dim = tensor.dim;
  RowFrame frame;
  frame.dim = dim;
  frame.matrix =
      scratch->Expanded(plan.RotationOf(ref.tensor, ref.head), dim, RotateDirection::kInverse);
  Unrotate(frame, rows, absl::MakeSpan(scratch->multiply_work));
  if (tensor.is_v || plan.descriptor().centring == Centring::kNone) return;
  LoadCrumbBases(tensor, plan.MeanOf(ref.tensor, ref.head),
                 job.block.subspan(tensor.side_offset, tensor.side_bytes), scratch);
  const uint8_t* meta = job.block.data() + tensor.meta_offset;
  for (size_t row = 0; row < ref.tokens; ++row) {
    const bool page = tensor.side_bytes != 0 && (meta[2 * row + 1] & kCrumbStaticFlag) == 0;
    const std::vector<float>& base = page ? scratch->base_page : scratch->base_static;
    AddBase(absl::MakeConstSpan(base).first(dim), rows.subspan(row * dim, dim));
  }
}

}  // namespace

CrumbHead::CrumbHead(std::shared_ptr<const QueryMetrics> metrics, double gamma)
    : metrics_(std::move(metrics)), gamma_(gamma) {}

void CrumbHead::Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                       CodecScratch* scratch) const {
  const QueryMetric& metric = (*metrics_)[job.ref.tensor][job.ref.head];
  HeadEncoder(plan, job, scratch).Run(metric.empty() ? nullptr : &metric, gamma_);
}

void CrumbHead::Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                       CodecScratch* scratch) const {
  const HeadRef& ref = job.ref;
  const TensorLayout& tensor = plan.layout().tensors()[ref.tensor];
  const size_t dim = tensor.dim;
  const CrumbGrid grid = CrumbGridOf(tensor.pack.bits);
  PhaseClock clock(scratch->phases);
  const uint8_t* meta = job.block.data() + tensor.meta_offset;
  const auto codes = absl::MakeSpan(scratch->codes).first(dim);
  for (size_t row = 0; row < ref.tokens; ++row) {
    UnpackRow(tensor.pack, job.block.subspan(row * tensor.code_row_bytes, tensor.code_row_bytes),
              codes);
    float levels[16];
    CrumbLevels(grid, meta[2 * row], meta[2 * row + 1], levels);
    float* out = scratch->rows_x.data() + row * dim;
    for (size_t i = 0; i < dim; ++i) out[i] = levels[codes[i]];
  }
  clock.Lap(CodecPhase::kUnpack);
  const auto rows = absl::MakeSpan(scratch->rows_x).first(ref.tokens * dim);
  if (job.frame == Frame::kOriginal) Restore(plan, job, rows, scratch);
  StoreRows(rows, job.rows);
  clock.Lap(CodecPhase::kUnrotate);
}

}  // namespace crumb
