// OSCAR's codec and its baselines by vector kernels: from the rotated row on bit for bit
// AffineHead, which does the blocks and rows that the kernels do not take. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_AFFINE_HEAD_H_
#define CRUMB_GPU_CODEC_VECTOR_AFFINE_HEAD_H_

#include <utility>

#include "gpu/codec/affine_head.h"
#include "gpu/codec/head_codec.h"
#include "gpu/codec/vector_plan.h"

namespace crumb {

class VectorAffineHead final : public HeadCodec {
 public:
  explicit VectorAffineHead(VectorPlan vectors) : vectors_(std::move(vectors)) {}

  void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
              CodecScratch* scratch) const override;
  void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
              CodecScratch* scratch) const override;

 private:
  const VectorPlan vectors_;
  const AffineHead reference_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_AFFINE_HEAD_H_
