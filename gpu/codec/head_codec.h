// HeadCodec: how one (tensor, head) block of a payload is made from rows and read back. The page
// around it (checks, partial pages, order) is lossy_codec's. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_HEAD_CODEC_H_
#define CRUMB_GPU_CODEC_HEAD_CODEC_H_

#include <cstdint>

#include "cachesvc/base/types.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {

struct HeadRef {
  size_t tensor = 0;  // index into the plan's tensors
  uint32_t head = 0;  // within the part
  uint32_t tokens = 0;
};

struct HeadEncodeJob {
  HeadRef ref;
  Effort effort = Effort::kNormal;
  Bytes rows;                      // as put: BF16 [tokens][dim], all finite
  HeadScan scan;                   // of the rows; vector backends only
  MutableBytes block;              // zeroed
  EncodeReport* report = nullptr;  // sums are added to it
};

struct HeadDecodeJob {
  HeadRef ref;
  Frame frame = Frame::kOriginal;
  Bytes block;
  MutableBytes rows;  // BF16 [tokens][dim], to be written
};

class HeadCodec {
 public:
  virtual ~HeadCodec() = default;
  virtual void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                      CodecScratch* scratch) const = 0;
  virtual void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                      CodecScratch* scratch) const = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_HEAD_CODEC_H_
