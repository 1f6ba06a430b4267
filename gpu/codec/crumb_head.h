// Codec `crumb` as a HeadCodec: page or static mean per row, metric feedback, gain, 8-bit metadata.
// Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_CRUMB_HEAD_H_
#define CRUMB_GPU_CODEC_CRUMB_HEAD_H_

#include <memory>

#include "gpu/codec/head_codec.h"

namespace crumb {

class CrumbHead final : public HeadCodec {
 public:
  CrumbHead(std::shared_ptr<const QueryMetrics> metrics, double gamma);

  void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
              CodecScratch* scratch) const override;
  void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
              CodecScratch* scratch) const override;

 private:
  std::shared_ptr<const QueryMetrics> metrics_;
  double gamma_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CRUMB_HEAD_H_
