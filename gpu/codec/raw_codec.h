// Raw pages: bytes as put, any dtype, any layer kind; rows past the count become zero. Immutable;
// any thread.
#ifndef CRUMB_GPU_CODEC_RAW_CODEC_H_
#define CRUMB_GPU_CODEC_RAW_CODEC_H_

#include <memory>

#include "cachesvc/base/identity.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/page_codec.h"

namespace crumb {

class RawCodec final : public PageCodec {
 public:
  RawCodec(CodecPlan plan, RawDtype dtype);

  const CodecDescriptor& descriptor() const override { return plan_.descriptor(); }
  uint32_t payload_bytes() const override { return plan_.layout().payload_bytes(); }
  std::unique_ptr<Scratch> MakeScratch() const override;
  EncodeReport Encode(Bytes raw, uint32_t tokens, Effort effort, MutableBytes payload,
                      Scratch* scratch) const override;
  bool Decode(Bytes payload, uint32_t tokens, Frame frame, MutableBytes raw,
              Scratch* scratch) const override;

 private:
  // Copies the first `tokens` rows of every head and zeroes the others.
  void CopyRows(Bytes from, uint32_t tokens, MutableBytes to) const;

  const CodecPlan plan_;
  const RawDtype dtype_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_RAW_CODEC_H_
