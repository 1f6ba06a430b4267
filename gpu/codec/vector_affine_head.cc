// One head of an OSCAR-like page, sixteen rows at a time. Any thread.
#include "gpu/codec/vector_affine_head.h"

#include <algorithm>
#include <cstring>

#include "gpu/codec/row_frame.h"
#include "gpu/codec/vector_decode.h"
#include "gpu/codec/vector_rotate.h"

namespace crumb {
namespace {

constexpr float kRangeFloor = 1e-8f;  // the published one: rows below it go by the scalar code

ClipKind ClipOf(const ClipRule& rule) {
  if (rule.method == ClipMethod::kNone || rule.ratio <= 0.0f) return ClipKind::kNone;
  return rule.method == ClipMethod::kSort ? ClipKind::kSort : ClipKind::kBisect;
}

// Work of one Encode call on rows that are rotated already.
class GroupEncoder {
 public:
  GroupEncoder(const CodecPlan& plan, const VectorPlan& vectors, const HeadEncodeJob& job,
               CodecScratch* scratch)
      : kernels_(vectors.kernels()),
        descriptor_(plan.descriptor()),
        job_(job),
        tensor_(plan.layout().tensors()[job.ref.tensor]),
        scratch_(scratch),
        work_(scratch->vector) {
    const ClipRule rule{descriptor_.clip_method,
                        tensor_.is_v ? descriptor_.clip_v : descriptor_.clip_k};
    affine_.y = work_.y.data();
    affine_.pairs = work_.pairs.data();
    affine_.dim = tensor_.dim;
    affine_.groups = tensor_.groups;
    affine_.clip = ClipOf(rule);
    if (affine_.clip != ClipKind::kNone) {
      affine_.rank = static_cast<uint32_t>(ClipIndex(rule.ratio, tensor_.dim));
    }
    affine_.top = static_cast<float>((1u << tensor_.pack.bits) - 1);
    affine_.threshold = threshold_;
    affine_.range = work_.range.data();
    affine_.scale = work_.scale.data();
    affine_.zero = work_.zero.data();
    affine_.stored_scale = work_.stored_scale.data();
    affine_.stored_zero = work_.stored_zero.data();
    affine_.wide = descriptor_.meta == MetaForm::kFp32;
    affine_.meta = work_.meta.data();
    affine_.codes = work_.codes.data();
    affine_.error = error_;
  }

  // Sixteen rows from `first` on; returns their squared error.
  double Run(const uint16_t* y, uint32_t first, PhaseClock* clock) {
    const uint32_t count = std::min(kGroupRows, job_.ref.tokens - first);
    const uint16_t* rows = y + size_t{first} * tensor_.dim;
    kernels_.group_load({.rows = rows,
                         .count = count,
                         .dim = tensor_.dim,
                         .pairs = work_.pairs.data(),
                         .y = work_.y.data()});
    kernels_.affine_range(affine_);
    StoreMeta(first, count);
    clock->Lap(CodecPhase::kRange);
    kernels_.affine_codes(affine_);
    clock->Lap(CodecPhase::kQuantise);
    uint8_t* out = job_.block.data() + size_t{first} * tensor_.code_row_bytes;
    kernels_.group_pack({.codes = work_.codes.data(),
                         .count = count,
                         .dim = tensor_.dim,
                         .bits = tensor_.pack.bits,
                         .work = work_.pack.data(),
                         .out = out,
                         .row_bytes = tensor_.code_row_bytes});
    double error = 0.0;
    for (uint32_t row = 0; row < count; ++row) {
      error += floored_[row] != 0 ? ScalarRow(rows + size_t{row} * tensor_.dim, first + row)
                                  : double{error_[row]};
    }
    clock->Lap(CodecPhase::kPack);
    return error;
  }

 private:
  void StoreMeta(uint32_t first, uint32_t count) {
    const size_t pair_bytes = tensor_.meta_row_bytes / tensor_.groups;
    std::fill(floored_, floored_ + kGroupRows, uint8_t{0});
    for (uint32_t g = 0; g < tensor_.groups; ++g) {
      const size_t at = size_t{g} * kGroupRows;
      const float* range = work_.range.data() + at;
      for (uint32_t row = 0; row < kGroupRows; ++row) {
        floored_[row] |= range[row] >= kRangeFloor ? 0 : 1;
      }
      uint8_t* meta = job_.block.data() + tensor_.meta_offset + g * pair_bytes +
                      size_t{first} * tensor_.meta_row_bytes;
      for (uint32_t row = 0; row < count; ++row, meta += tensor_.meta_row_bytes) {
        if (affine_.wide) {
          std::memcpy(meta, &work_.scale[at + row], sizeof(float));
          std::memcpy(meta + sizeof(float), &work_.zero[at + row], sizeof(float));
        } else {
          std::memcpy(meta, &work_.meta[at + row], sizeof(uint32_t));
        }
      }
    }
  }

  // WHY: below the floor of the range the published form has corners (signs of zeros, rows that it
  // erases) that are the reference's to decide.
  double ScalarRow(const uint16_t* y, uint32_t row) {
    const size_t dim = tensor_.dim;
    const auto rotated = absl::MakeSpan(scratch_->rows_y).subspan(row * dim, dim);
    LoadRows({reinterpret_cast<const uint8_t*>(y), 2 * dim}, rotated);
    const AffineRowOutcome outcome =
        EncodeAffineRow(tensor_, descriptor_, row, scratch_, job_.block);
    if (outcome.floored && outcome.error > kRowErrorMax * SumOfSquares(rotated)) {
      job_.report->fits = false;
    }
    return outcome.error;
  }

  const VectorKernels& kernels_;
  const CodecDescriptor& descriptor_;
  const HeadEncodeJob& job_;
  const TensorLayout& tensor_;
  CodecScratch* scratch_;
  VectorWork& work_;
  AffineJob affine_{};
  float threshold_[kGroupRows];
  float error_[kGroupRows];
  uint8_t floored_[kGroupRows];
};

}  // namespace

void VectorAffineHead::Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                              CodecScratch* scratch) const {
  const TensorLayout& tensor = plan.layout().tensors()[job.ref.tensor];
  const absl::Span<const float> mean = plan.MeanOf(job.ref.tensor, job.ref.head);
  PhaseClock clock(scratch->phases);
  const uint16_t* y = nullptr;
  if (VectorPlan::Takes(tensor) && Comfortable(job.scan)) {
    y = RotateRows({.kernels = &vectors_.kernels(),
                    .rotation = vectors_.head(job.ref.tensor, job.ref.head).rotation.get(),
                    .base = mean.empty() ? nullptr : mean.data(),
                    .rows = job.ref.tokens,
                    .dim = tensor.dim},
                   reinterpret_cast<const uint16_t*>(job.rows.data()), &scratch->vector);
  }
  if (y == nullptr) return reference_.Encode(plan, job, scratch);
  clock.Lap(CodecPhase::kRotate);
  GroupEncoder encoder(plan, vectors_, job, scratch);
  double error = 0.0;
  for (uint32_t row = 0; row < job.ref.tokens; row += kGroupRows) {
    error += encoder.Run(y, row, &clock);
  }
  (tensor.is_v ? job.report->error_v : job.report->error_k) += error;
  (tensor.is_v ? job.report->energy_v : job.report->energy_k) += job.scan.energy;
}

void VectorAffineHead::Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                              CodecScratch* scratch) const {
  const TensorLayout& tensor = plan.layout().tensors()[job.ref.tensor];
  const absl::Span<const float> mean = plan.MeanOf(job.ref.tensor, job.ref.head);
  const size_t rows = job.ref.tokens;
  const size_t groups = tensor.groups;
  bool takes =
      VectorPlan::Takes(tensor) && tensor.dim / groups % kUnpackStep == 0 && ComfortableBase(mean);
  if (takes) {
    VectorWork& work = scratch->vector;
    const uint8_t* meta = job.block.data() + tensor.meta_offset;
    const MetaForm form = plan.descriptor().meta;
    const size_t pair_bytes = tensor.meta_row_bytes / groups;
    for (size_t i = 0; i < rows * groups; ++i) {
      const Affine affine = LoadAffine(form, meta + i * pair_bytes);
      work.row_scale[i] = affine.scale;
      work.row_zero[i] = affine.zero;
    }
    takes = ComfortableLevels(absl::MakeConstSpan(work.row_scale.data(), rows * groups),
                              absl::MakeConstSpan(work.row_zero.data(), rows * groups));
  }
  if (!takes) return reference_.Decode(plan, job, scratch);
  VectorBases bases;
  if (!mean.empty()) bases.base[0] = bases.base[1] = mean.data();
  DecodeRows(plan, vectors_, job, bases, scratch);
}

}  // namespace crumb
