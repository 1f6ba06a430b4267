// HeadCodec: how one (tensor, head) block of a payload is made from rows and read back. The page
// around it (checks, partial pages, order) is lossy_codec's. Immutable; any thread.
#ifndef CRUMB_GPU_CODEC_HEAD_CODEC_H_
#define CRUMB_GPU_CODEC_HEAD_CODEC_H_

#include <cstdint>

#include "cachesvc/base/types.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/page_codec.h"

namespace crumb {

struct HeadRef {
  size_t tensor = 0;  // index into the plan's tensors
  uint32_t head = 0;  // within the part
  uint32_t tokens = 0;
};

struct HeadEncodeJob {
  HeadRef ref;
  Effort effort = Effort::kNormal;
  MutableBytes block;              // zeroed
  EncodeReport* report = nullptr;  // sums are added to it
};

struct HeadDecodeJob {
  HeadRef ref;
  Frame frame = Frame::kOriginal;
  Bytes block;
};

class HeadCodec {
 public:
  virtual ~HeadCodec() = default;
  // Reads scratch->rows_x: the rows as put, all finite.
  virtual void Encode(const CodecPlan& plan, const HeadEncodeJob& job,
                      CodecScratch* scratch) const = 0;
  // Leaves the rows of the frame asked for in scratch->rows_x.
  virtual void Decode(const CodecPlan& plan, const HeadDecodeJob& job,
                      CodecScratch* scratch) const = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_HEAD_CODEC_H_
