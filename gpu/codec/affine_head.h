// OSCAR's codec and its baselines as a HeadCodec: rotate, clip, quantise per group, pack; metadata
// interleaved (scale, zero) in BF16 or FP32. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_AFFINE_HEAD_H_
#define CRUMB_GPU_CODEC_AFFINE_HEAD_H_

#include "gpu/codec/head_codec.h"

namespace crumb {

class AffineHead final : public HeadCodec {
 public:
  void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
              CodecScratch* scratch) const override;
  void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
              CodecScratch* scratch) const override;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_AFFINE_HEAD_H_
