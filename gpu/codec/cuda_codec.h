// CudaCodec: pages of one part packed and unpacked on a GPU, many pages in one launch. Holds what
// kernels read (rotation images, means, tables) in device memory; immutable after Create. The
// scalar codec stays the format: rows differ from its by a BF16 step at most once rotated, and
// from there on bytes are equal (docs/gpu.md). Launches from one thread per stream; they never
// wait.
#ifndef CRUMB_GPU_CODEC_CUDA_CODEC_H_
#define CRUMB_GPU_CODEC_CUDA_CODEC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/cuda_launch.h"
#include "gpu/codec/page_codec.h"
#include "gpu/device/cuda_memory.h"
#include "gpu/device/stream_queue.h"

namespace crumb {

// Pages of one launch, and where their rows lie in the worker's memory. All of it device-visible.
struct CudaPages {
  const CudaPlace* places = nullptr;  // [tensor], layers in part order, K then V
  const CudaPage* pages = nullptr;
  const uint32_t* slots = nullptr;
  CudaPageReport* reports = nullptr;  // [page], reset by ResetReports; encode only
  uint32_t count = 0;
  uint32_t tokens_per_slot = 0;
  bool aligned = false;  // every address and stride of `places` is a multiple of 16
};

class CudaCodec {
 public:
  // FAILED_PRECONDITION: no kernel for this part (head dims other than 64, 128 and 256, groups
  // below 16 elements) or too little shared memory on the device; the message names layer, tensor
  // and remedy. UNAVAILABLE, RESOURCE_EXHAUSTED, INVALID_ARGUMENT: the device. Start-up only;
  // waits.
  static absl::StatusOr<std::unique_ptr<CudaCodec>> Create(
      const PartShape& shape, const CodecDescriptor& descriptor,
      std::shared_ptr<const RotationSet> rotations, int device);

  const PayloadLayout& layout() const { return plan_.layout(); }
  // Whether Encode exists for this descriptor and fits the device; else only Decode, and the status
  // says why.
  bool encodes() const { return encode_status_.ok(); }
  const absl::Status& encode_status() const { return encode_status_; }

  // Puts the launches on `stream`. Rows from a page's `tokens` on are neither read nor written.
  // REQUIRES: pages.count >= 1; payloads 16-byte aligned, of layout().payload_bytes(); slots and
  // places checked against the worker's regions, addresses and strides even; all of it unchanged
  // until the stream has passed; the codec's device current on this thread. An error names CUDA's.
  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const;
  // REQUIRES: encodes(). All of each payload is written, unless its report names a bad place.
  // `effort` matters to the crumb kinds alone.
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const;
  absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const;

 private:
  struct Group {  // launched together
    CudaForm form;
    uint32_t first = 0, count = 0;  // in the table of heads
    uint32_t heads_most = 0;
    uint32_t heads_all = 0;
  };
  struct Direction {  // encode or decode
    std::vector<Group> groups;
    DeviceBuffer heads;
    std::vector<CudaHeads> table;
  };
  class Builder;

  explicit CudaCodec(CodecPlan plan) : plan_(std::move(plan)) {}
  absl::Status Prepare();
  bool IsCrumb() const;
  CudaLaunch LaunchOf(const CudaPages& pages, const Direction& direction, const Group& group,
                      StreamHandle stream) const;

  const CodecPlan plan_;
  Direction decode_, encode_;
  DeviceBuffer constants_;  // images, means, scales
  const float* scales_ = nullptr;
  uint32_t multiprocessors_ = 0;
  uint32_t shared_bytes_ = 0;  // of a block at most
  bool overlaps_ = false;      // a kernel may begin while the one before it ends
  int device_ = 0;
  absl::Status encode_status_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_CODEC_H_
