// Makes the scalar codec of a descriptor. Control path; any thread.
#include "gpu/codec/page_codec.h"

#include <map>
#include <utility>

#include "gpu/codec/affine_head.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/crumb_head.h"
#include "gpu/codec/kind_traits.h"
#include "gpu/codec/lossy_codec.h"
#include "gpu/codec/raw_codec.h"

namespace crumb {
namespace {

constexpr double kGammaUnknown = 0.5;  // where no calibration chose one

// Metrics by rotation set: the crumb kinds of one part differ in bits only.
using MetricsBySet = std::map<Sha256, std::shared_ptr<const QueryMetrics>>;

std::unique_ptr<PageCodec> Own(std::unique_ptr<PageCodec> codec) { return codec; }

absl::StatusOr<std::unique_ptr<PageCodec>> MakeCodec(const PartShape& shape,
                                                     const CodecDescriptor& descriptor,
                                                     std::shared_ptr<const RotationSet> rotations,
                                                     MetricsBySet* known) {
  CRUMB_ASSIGN(CodecPlan plan, CodecPlan::Make(shape, descriptor, std::move(rotations)));
  switch (TraitsOf(descriptor.kind).family) {
    case CodecFamily::kRaw:
      return Own(std::make_unique<RawCodec>(std::move(plan), shape.dtype));
    case CodecFamily::kAffine:
      return Own(std::make_unique<LossyCodec>(std::move(plan), std::make_unique<AffineHead>()));
    case CodecFamily::kCrumb:
      break;
  }
  std::shared_ptr<const QueryMetrics>& metrics = (*known)[descriptor.rotation_set];
  if (metrics == nullptr) {
    CRUMB_ASSIGN(metrics, plan.MakeMetrics());
  }
  const RotationSet* set = plan.rotations();
  const double gamma = set != nullptr ? double{set->contents().gamma} : kGammaUnknown;
  auto head = std::make_unique<CrumbHead>(metrics, gamma);
  return Own(std::make_unique<LossyCodec>(std::move(plan), std::move(head)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageCodec>> PageCodec::Create(
    const PartShape& shape, const CodecDescriptor& descriptor,
    std::shared_ptr<const RotationSet> rotations) {
  MetricsBySet known;
  return MakeCodec(shape, descriptor, std::move(rotations), &known);
}

absl::StatusOr<std::vector<std::shared_ptr<const PageCodec>>> PageCodec::CreateAll(
    const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
    std::shared_ptr<const RotationSet> rotations) {
  MetricsBySet known;
  std::vector<std::shared_ptr<const PageCodec>> codecs;
  for (const CodecDescriptor& descriptor : descriptors) {
    CRUMB_ASSIGN(std::unique_ptr<PageCodec> codec, MakeCodec(shape, descriptor, rotations, &known));
    codecs.push_back(std::move(codec));
  }
  return codecs;
}

CodecKind StepUp(CodecKind kind) {
  switch (kind) {
    case CodecKind::kCrumbInt2:
      return CodecKind::kCrumbK3V2;
    case CodecKind::kCrumbK3V2:
      return CodecKind::kCrumbInt4;
    default:
      return CodecKind::kRaw;
  }
}

}  // namespace crumb
