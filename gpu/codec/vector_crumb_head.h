// Codec `crumb` by vector kernels: decoders exact up to y^, encoders in FP32 that agree with
// CrumbHead as docs/codec.md says; CrumbHead does the blocks that the kernels do not take, the
// scalar quantiser the rows. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_CRUMB_HEAD_H_
#define CRUMB_GPU_CODEC_VECTOR_CRUMB_HEAD_H_

#include <memory>
#include <utility>

#include "gpu/codec/crumb_head.h"
#include "gpu/codec/head_codec.h"
#include "gpu/codec/vector_plan.h"

namespace crumb {

class VectorCrumbHead final : public HeadCodec {
 public:
  VectorCrumbHead(VectorPlan vectors, const std::shared_ptr<const QueryMetrics>& metrics,
                  double gamma)
      : vectors_(std::move(vectors)),
        metrics_(metrics),
        gamma_(gamma),
        reference_(metrics, gamma) {}

  void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
              CodecScratch* scratch) const override;
  void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
              CodecScratch* scratch) const override;

 private:
  const VectorPlan vectors_;
  const std::shared_ptr<const QueryMetrics> metrics_;
  const double gamma_;
  const CrumbHead reference_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_CRUMB_HEAD_H_
