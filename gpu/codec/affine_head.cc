// One head of an OSCAR-like page. Any thread.
#include "gpu/codec/affine_head.h"

#include <algorithm>
#include <cstring>

#include "gpu/codec/bf16.h"
#include "gpu/codec/quantise_affine.h"
#include "gpu/codec/row_frame.h"

namespace crumb {
namespace {

// What every code of a group decodes to.
struct Levels {
  float value[16];
};

Levels LevelsOf(const Affine& affine, uint32_t bits) {
  Levels levels;
  for (uint32_t code = 0; code < (1u << bits); ++code) {
    levels.value[code] = RoundToBf16(Dequantise(static_cast<uint8_t>(code), affine));
  }
  return levels;
}

void DecodeRow(const TensorLayout& tensor, MetaForm meta_form, size_t row, Bytes block,
               CodecScratch* scratch) {
  const size_t dim = tensor.dim;
  const absl::Span<uint8_t> codes = absl::MakeSpan(scratch->codes).first(dim);
  UnpackRow(tensor.pack, block.subspan(row * tensor.code_row_bytes, tensor.code_row_bytes), codes);
  const size_t group = dim / tensor.groups;
  const size_t pair_bytes = tensor.meta_row_bytes / tensor.groups;
  const uint8_t* meta = block.data() + tensor.meta_offset + row * tensor.meta_row_bytes;
  float* out = scratch->rows_x.data() + row * dim;
  for (size_t g = 0; g < tensor.groups; ++g) {
    const Levels levels = LevelsOf(LoadAffine(meta_form, meta + g * pair_bytes), tensor.pack.bits);
    for (size_t i = g * group; i < (g + 1) * group; ++i) out[i] = levels.value[codes[i]];
  }
}

}  // namespace

Affine StoreAffine(const Affine& affine, MetaForm meta, uint8_t* out) {
  if (meta == MetaForm::kFp32) {
    const float pair[2] = {affine.scale, affine.zero};
    std::memcpy(out, pair, sizeof(pair));
    return affine;
  }
  const uint16_t pair[2] = {FloatToBf16(affine.scale), FloatToBf16(affine.zero)};
  std::memcpy(out, pair, sizeof(pair));
  return {Bf16ToFloat(pair[0]), Bf16ToFloat(pair[1])};
}

Affine LoadAffine(MetaForm meta, const uint8_t* in) {
  if (meta == MetaForm::kFp32) {
    float pair[2];
    std::memcpy(pair, in, sizeof(pair));
    return {pair[0], pair[1]};
  }
  uint16_t pair[2];
  std::memcpy(pair, in, sizeof(pair));
  return {Bf16ToFloat(pair[0]), Bf16ToFloat(pair[1])};
}

AffineRowOutcome EncodeAffineRow(const TensorLayout& tensor, const CodecDescriptor& descriptor,
                                 size_t row, CodecScratch* scratch, MutableBytes block) {
  const size_t dim = tensor.dim;
  const uint32_t bits = tensor.pack.bits;
  const absl::Span<const float> y = absl::MakeConstSpan(scratch->rows_y).subspan(row * dim, dim);
  // The clipped copy may overwrite the row as put: it is not needed any more.
  const absl::Span<float> clipped = absl::MakeSpan(scratch->rows_x).subspan(row * dim, dim);
  std::copy(y.begin(), y.end(), clipped.begin());
  const float ratio = tensor.is_v ? descriptor.clip_v : descriptor.clip_k;
  ClipRow({descriptor.clip_method, ratio}, clipped, absl::MakeSpan(scratch->row_work));

  const absl::Span<uint8_t> codes = absl::MakeSpan(scratch->codes).first(dim);
  const size_t group = dim / tensor.groups;
  const size_t pair_bytes = tensor.meta_row_bytes / tensor.groups;
  uint8_t* meta = block.data() + tensor.meta_offset + row * tensor.meta_row_bytes;
  AffineRowOutcome outcome;
  for (size_t g = 0; g < tensor.groups; ++g) {
    const absl::Span<uint8_t> group_codes = codes.subspan(g * group, group);
    const Affine affine = QuantiseGroup(clipped.subspan(g * group, group), bits, group_codes);
    const Affine stored = StoreAffine(affine, descriptor.meta, meta + g * pair_bytes);
    const Levels levels = LevelsOf(stored, bits);
    for (size_t i = 0; i < group; ++i) {
      const double e = double{y[g * group + i]} - double{levels.value[group_codes[i]]};
      outcome.error += e * e;
    }
    outcome.floored |= affine.floored;
  }
  PackRow(tensor.pack, codes, block.subspan(row * tensor.code_row_bytes, tensor.code_row_bytes));
  return outcome;
}

void AffineHead::Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                        CodecScratch* scratch) const {
  const HeadRef& ref = job.ref;
  const TensorLayout& tensor = plan.layout().tensors()[ref.tensor];
  const size_t dim = tensor.dim;
  const size_t size = ref.tokens * dim;
  PhaseClock clock(scratch->phases);
  LoadRows(job.rows, absl::MakeSpan(scratch->rows_x).first(size));
  const auto x = absl::MakeConstSpan(scratch->rows_x).first(size);
  const auto y = absl::MakeSpan(scratch->rows_y).first(size);
  const RowFrame frame{
      dim, scratch->Expanded(plan.RotationOf(ref.tensor, ref.head), dim, RotateDirection::kForward),
      plan.MeanOf(ref.tensor, ref.head)};
  const double energy = SumOfSquares(x);
  if (!ToRotated(frame, x, y, absl::MakeSpan(scratch->multiply_work))) job.report->fits = false;
  clock.Lap(CodecPhase::kRotate);
  double error = 0.0;
  for (size_t row = 0; row < ref.tokens; ++row) {
    const AffineRowOutcome outcome =
        EncodeAffineRow(tensor, plan.descriptor(), row, scratch, job.block);
    error += outcome.error;
    // WHY: the published floor of the range erases rows of tiny values; those are kept raw.
    const double row_energy = SumOfSquares(y.subspan(row * dim, dim));
    if (outcome.floored && outcome.error > kRowErrorMax * row_energy) job.report->fits = false;
  }
  (tensor.is_v ? job.report->error_v : job.report->error_k) += error;
  (tensor.is_v ? job.report->energy_v : job.report->energy_k) += energy;
  clock.Lap(CodecPhase::kQuantise);  // range and packing of each row included
}

void AffineHead::Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                        CodecScratch* scratch) const {
  const HeadRef& ref = job.ref;
  const TensorLayout& tensor = plan.layout().tensors()[ref.tensor];
  const size_t dim = tensor.dim;
  PhaseClock clock(scratch->phases);
  for (size_t row = 0; row < ref.tokens; ++row) {
    DecodeRow(tensor, plan.descriptor().meta, row, job.block, scratch);
  }
  clock.Lap(CodecPhase::kUnpack);
  const auto rows = absl::MakeSpan(scratch->rows_x).first(ref.tokens * dim);
  if (job.frame == Frame::kOriginal) {
    const RowFrame frame{
        dim,
        scratch->Expanded(plan.RotationOf(ref.tensor, ref.head), dim, RotateDirection::kInverse),
        plan.MeanOf(ref.tensor, ref.head)};
    Unrotate(frame, rows, absl::MakeSpan(scratch->multiply_work));
    for (size_t row = 0; row < ref.tokens && !frame.base.empty(); ++row) {
      AddBase(frame.base, rows.subspan(row * dim, dim));
    }
  }
  StoreRows(rows, job.rows);
  clock.Lap(CodecPhase::kUnrotate);
}

}  // namespace crumb
