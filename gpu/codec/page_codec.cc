// Makes the codec of a descriptor. Control path; any thread.
#include "gpu/codec/page_codec.h"

#include <map>
#include <utility>

#include "gpu/codec/affine_head.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/crumb_head.h"
#include "gpu/codec/kind_traits.h"
#include "gpu/codec/lossy_codec.h"
#include "gpu/codec/raw_codec.h"
#include "gpu/codec/vector_affine_head.h"
#include "gpu/codec/vector_crumb_head.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// What the codecs of one part share while they are made: metrics by rotation set (the crumb kinds
// differ in bits only), and packed matrices.
struct Known {
  const VectorKernels* kernels = nullptr;
  std::map<Sha256, std::shared_ptr<const QueryMetrics>> metrics;
  PackedForms packed;
};

std::unique_ptr<PageCodec> Own(std::unique_ptr<PageCodec> codec) { return codec; }

absl::StatusOr<std::unique_ptr<PageCodec>> MakeCodec(const PartShape& shape,
                                                     const CodecDescriptor& descriptor,
                                                     std::shared_ptr<const RotationSet> rotations,
                                                     Known* known) {
  CRUMB_ASSIGN(CodecPlan plan, CodecPlan::Make(shape, descriptor, std::move(rotations)));
  const VectorKernels* kernels = known->kernels;
  const CodecFamily family = TraitsOf(descriptor.kind).family;
  if (family == CodecFamily::kRaw)
    return Own(std::make_unique<RawCodec>(std::move(plan), shape.dtype));
  std::unique_ptr<const HeadCodec> head;
  if (family == CodecFamily::kAffine) {
    if (kernels == nullptr) {
      head = std::make_unique<AffineHead>();
    } else {
      head = std::make_unique<VectorAffineHead>(
          VectorPlan::Make(*kernels, plan, nullptr, &known->packed));
    }
    return Own(std::make_unique<LossyCodec>(std::move(plan), std::move(head), kernels));
  }
  std::shared_ptr<const QueryMetrics>& metrics = known->metrics[descriptor.rotation_set];
  if (metrics == nullptr) {
    CRUMB_ASSIGN(metrics, plan.MakeMetrics());
  }
  const double gamma = double{plan.Gamma()};
  if (kernels == nullptr) {
    head = std::make_unique<CrumbHead>(metrics, gamma);
  } else {
    head = std::make_unique<VectorCrumbHead>(
        VectorPlan::Make(*kernels, plan, metrics.get(), &known->packed), metrics, gamma);
  }
  return Own(std::make_unique<LossyCodec>(std::move(plan), std::move(head), kernels));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageCodec>> PageCodec::Create(
    const PartShape& shape, const CodecDescriptor& descriptor,
    std::shared_ptr<const RotationSet> rotations, CodecBackend backend) {
  CRUMB_ASSIGN(backend, ResolveCodecBackend(backend));
  Known known{.kernels = KernelsOf(backend), .metrics = {}, .packed = {}};
  return MakeCodec(shape, descriptor, std::move(rotations), &known);
}

absl::StatusOr<std::vector<std::shared_ptr<const PageCodec>>> PageCodec::CreateAll(
    const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
    std::shared_ptr<const RotationSet> rotations, CodecBackend backend) {
  CRUMB_ASSIGN(backend, ResolveCodecBackend(backend));
  Known known{.kernels = KernelsOf(backend), .metrics = {}, .packed = {}};
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
