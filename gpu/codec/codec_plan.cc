// Resolves which matrix and mean each tensor uses, and refuses what cannot work. Control path.
#include "gpu/codec/codec_plan.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/kind_traits.h"

namespace crumb {
namespace {

constexpr float kGammaUnknown = 0.5f;  // where no calibration chose one

template <typename... Parts>
absl::Status Refuse(const TensorLayout& tensor, const Parts&... parts) {
  return absl::FailedPreconditionError(
      absl::StrCat("layer ", tensor.layer_id, tensor.is_v ? " V: " : " K: ", parts...));
}

// `heads` entries of a set must cover the part's heads, or be one that all share.
absl::Status CheckHeads(const TensorLayout& tensor, const char* what, uint32_t heads) {
  if (heads == 1 || heads >= tensor.head_first + tensor.heads) return absl::OkStatus();
  return Refuse(tensor, "the rotation set has ", what, " for ", heads, " kv heads, the part needs ",
                tensor.head_first + tensor.heads, "; use the set of this model");
}

}  // namespace

absl::Span<const float> CodecPlan::PerHead::Of(const TensorLayout& tensor, uint32_t head) const {
  if (heads == 0) return {};
  CRUMB_CHECK(head < tensor.heads);
  const size_t size = values.size() / heads;
  const size_t index = heads == 1 ? 0 : size_t{tensor.head_first} + head;
  return values.subspan(index * size, size);
}

CodecPlan::CodecPlan(PayloadLayout layout, const CodecDescriptor& descriptor,
                     std::shared_ptr<const RotationSet> rotations)
    : layout_(std::move(layout)), descriptor_(descriptor), rotations_(std::move(rotations)) {}

absl::StatusOr<CodecPlan> CodecPlan::Make(const PartShape& shape, const CodecDescriptor& descriptor,
                                          std::shared_ptr<const RotationSet> rotations) {
  CRUMB_TRY(descriptor.Check());
  const bool named = descriptor.rotation_set != Sha256{};
  if (named && rotations == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("codec ", ToString(descriptor.kind), ": rotation set ",
                     Hex(descriptor.rotation_set), " is not here; import it"));
  }
  if (named && rotations->hash() != descriptor.rotation_set) {
    return absl::FailedPreconditionError(absl::StrCat(
        "codec ", ToString(descriptor.kind), ": needs rotation set ", Hex(descriptor.rotation_set),
        ", was given ", Hex(rotations->hash()), "; import the one it names"));
  }
  CRUMB_ASSIGN(PayloadLayout layout, PayloadLayout::Make(shape, descriptor));
  CodecPlan plan(std::move(layout), descriptor, named ? std::move(rotations) : nullptr);
  if (descriptor.kind == CodecKind::kRaw) return plan;
  plan.data_.resize(plan.layout_.tensors().size());
  for (size_t i = 0; i < plan.data_.size(); ++i) {
    CRUMB_TRY(plan.Resolve(plan.layout_.tensors()[i], &plan.data_[i]));
  }
  return plan;
}

absl::Status CodecPlan::Resolve(const TensorLayout& tensor, Data* data) {
  const RotationLayer* layer = nullptr;
  if (rotations_ != nullptr) {
    layer = rotations_->FindLayer(tensor.layer_id);
    if (layer == nullptr) {
      return Refuse(tensor, "the rotation set has no such layer; calibrate or import one that has");
    }
  }
  CRUMB_TRY(ResolveRotation(tensor, layer, data));
  if (layer == nullptr || tensor.is_v || descriptor_.kind == CodecKind::kRaw) {
    return absl::OkStatus();
  }
  return ResolveCalibration(tensor, *layer, data);
}

absl::Status CodecPlan::ResolveRotation(const TensorLayout& tensor, const RotationLayer* layer,
                                        Data* data) {
  const RotationUse use = TraitsOf(descriptor_.kind).rotation;
  if (use == RotationUse::kNone) return absl::OkStatus();
  if (use != RotationUse::kHadamard && layer != nullptr) {
    const LayerRotation& own = tensor.is_v ? layer->v : layer->k;
    if (own.heads != 0) {
      if (own.dim != tensor.dim) {
        return Refuse(tensor, "the rotation set has head dim ", own.dim, ", the layout ",
                      tensor.dim, "; use the set of this model");
      }
      CRUMB_TRY(CheckHeads(tensor, "rotations", own.heads));
      data->rotation = {own.matrix, own.heads};
      return absl::OkStatus();
    }
  }
  if (!std::has_single_bit(tensor.dim) || tensor.dim > kRotationDimMax) {
    return Refuse(tensor, "head dim ", tensor.dim,
                  " has no Hadamard rotation (powers of two up to ", kRotationDimMax,
                  " have); import a rotation set, or use int4 or raw");
  }
  std::vector<float>& matrix = hadamard_[tensor.dim];
  if (matrix.empty()) matrix = HadamardMatrix(tensor.dim);
  data->rotation = {matrix, 1};
  return absl::OkStatus();
}

absl::Status CodecPlan::ResolveCalibration(const TensorLayout& tensor, const RotationLayer& layer,
                                           Data* data) {
  const size_t heads = layer.kv_heads;
  const size_t dim = tensor.dim;
  const bool has_mean = !layer.k_mean.empty();
  const bool has_moment = !layer.query_moment.empty();
  const bool crumb = TraitsOf(descriptor_.kind).family == CodecFamily::kCrumb;
  if (descriptor_.centring == Centring::kStaticMean && !crumb && !has_mean) {
    return Refuse(tensor, "the rotation set has no mean of K; calibrate, or use no centring");
  }
  if (!has_mean && !has_moment) return absl::OkStatus();
  if ((has_mean && layer.k_mean.size() != heads * dim) ||
      (has_moment && layer.query_moment.size() != heads * dim * dim)) {
    return Refuse(tensor, "the rotation set's calibration is not for head dim ", dim,
                  "; use the set of this model");
  }
  CRUMB_TRY(CheckHeads(tensor, "calibration", layer.kv_heads));
  if (has_mean && descriptor_.centring != Centring::kNone) {
    data->mean = {layer.k_mean, layer.kv_heads};
  }
  if (has_moment && crumb) data->moment = {layer.query_moment, layer.kv_heads};
  return absl::OkStatus();
}

absl::Span<const float> CodecPlan::RotationOf(size_t tensor, uint32_t head) const {
  return data_[tensor].rotation.Of(layout_.tensors()[tensor], head);
}

absl::Span<const float> CodecPlan::MeanOf(size_t tensor, uint32_t head) const {
  return data_[tensor].mean.Of(layout_.tensors()[tensor], head);
}

float CodecPlan::Gamma() const {
  return rotations_ != nullptr ? rotations_->contents().gamma : kGammaUnknown;
}

absl::StatusOr<std::shared_ptr<const QueryMetrics>> CodecPlan::MakeMetrics() const {
  auto metrics = std::make_shared<QueryMetrics>(data_.size());
  for (size_t t = 0; t < data_.size(); ++t) {
    const TensorLayout& tensor = layout_.tensors()[t];
    (*metrics)[t].resize(tensor.heads);
    if (data_[t].moment.heads == 0) continue;
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      auto metric =
          MakeQueryMetric(data_[t].moment.Of(tensor, head), RotationOf(t, head), tensor.dim);
      if (!metric.ok()) {
        return Refuse(tensor, "head ", tensor.head_first + head, ": ",
                      std::string(metric.status().message()));
      }
      (*metrics)[t][head] = std::move(*metric);
    }
  }
  return std::shared_ptr<const QueryMetrics>(std::move(metrics));
}

}  // namespace crumb
