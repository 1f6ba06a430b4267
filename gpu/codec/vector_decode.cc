// Unpack, rotate back, add the base. Any thread.
#include "gpu/codec/vector_decode.h"

#include <cmath>

namespace crumb {
namespace {

constexpr float kZeroMax = 0x1p40f;
constexpr float kZeroMin = 0x1p-60f;  // smaller ones make levels that could be denormal
constexpr float kBaseMin = 0x1p-100f;

}  // namespace

bool ComfortableLevels(absl::Span<const float> scale, absl::Span<const float> zero) {
  bool fine = true;
  for (size_t i = 0; i < scale.size(); ++i) {
    const float s = std::abs(scale[i]);
    const float z = std::abs(zero[i]);
    fine &= s >= 0x1p-40f && s <= 0x1p20f && z <= kZeroMax && (z == 0.0f || z >= kZeroMin);
  }
  return fine;
}

bool ComfortableBase(absl::Span<const float> base) {
  bool fine = true;
  for (const float value : base) {
    const float magnitude = std::abs(value);
    fine &= value == 0.0f || (magnitude >= kBaseMin && magnitude <= kComfortMax);
  }
  return fine;
}

void DecodeRows(const CodecPlan& plan, const VectorPlan& vectors, const HeadDecodeJob& job,
                const VectorBases& bases, CodecScratch* scratch) {
  const VectorKernels& kernels = vectors.kernels();
  const TensorLayout& tensor = plan.layout().tensors()[job.ref.tensor];
  const PackedRotation* rotation = vectors.head(job.ref.tensor, job.ref.head).rotation.get();
  VectorWork& work = scratch->vector;
  PhaseClock clock(scratch->phases);
  auto* out = reinterpret_cast<uint16_t*>(job.rows.data());
  const bool rotate = job.frame == Frame::kOriginal && rotation != nullptr;
  const bool add = job.frame == Frame::kOriginal && bases.base[0] != nullptr;
  const UnpackJob unpack{.codes = job.block.data(),
                         .row_bytes = tensor.code_row_bytes,
                         .rows = job.ref.tokens,
                         .dim = tensor.dim,
                         .bits = tensor.pack.bits,
                         .groups = tensor.groups,
                         .scale = work.row_scale.data(),
                         .zero = work.row_zero.data(),
                         .out = rotate || add ? work.rotated.data() : out};
  kernels.unpack(unpack);
  clock.Lap(CodecPhase::kUnpack);
  if (!rotate && !add) return;
  const MultiplyJob multiply{.x = unpack.out,
                             .matrix = rotate ? rotation->inverse.data() : nullptr,
                             .rows = job.ref.tokens,
                             .dim = tensor.dim,
                             .base = {bases.base[0], bases.base[1]},
                             .flags = bases.flags,
                             .out = out};
  (rotate ? kernels.multiply : kernels.add_base)(multiply);
  clock.Lap(CodecPhase::kUnrotate);
}

}  // namespace crumb
