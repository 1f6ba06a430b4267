// The page around packed heads: checks, the scan for NaN and Inf, partial pages, order of blocks.
// Immutable after construction; any thread.
#ifndef CRUMB_GPU_CODEC_LOSSY_CODEC_H_
#define CRUMB_GPU_CODEC_LOSSY_CODEC_H_

#include <memory>

#include "gpu/codec/codec_plan.h"
#include "gpu/codec/head_codec.h"
#include "gpu/codec/page_codec.h"

namespace crumb {

class LossyCodec final : public PageCodec {
 public:
  // `kernels` scan the page; null: the scalar code does, and heads get no scan.
  LossyCodec(CodecPlan plan, std::unique_ptr<const HeadCodec> head, const VectorKernels* kernels);

  const CodecDescriptor& descriptor() const override { return plan_.descriptor(); }
  uint32_t payload_bytes() const override { return plan_.layout().payload_bytes(); }
  std::unique_ptr<Scratch> MakeScratch() const override;
  EncodeReport Encode(Bytes raw, uint32_t tokens, Effort effort, MutableBytes payload,
                      Scratch* scratch) const override;
  bool Decode(Bytes payload, uint32_t tokens, Frame frame, MutableBytes raw,
              Scratch* scratch) const override;

 private:
  // Whether every value is finite; fills scratch->scans where there are kernels.
  bool Scan(Bytes raw, uint32_t tokens, CodecScratch* scratch) const;

  const CodecPlan plan_;
  const std::unique_ptr<const HeadCodec> head_;
  const VectorKernels* const kernels_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_LOSSY_CODEC_H_
