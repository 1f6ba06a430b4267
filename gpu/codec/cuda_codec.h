// CudaCodec: pages of one part packed and unpacked on a GPU, many pages in one launch. Holds what
// kernels read (rotation images, means, tables) in device memory; immutable after Create. The
// scalar codec stays the format: rows differ from its by a BF16 step at most once rotated, and
// from there on bytes are equal (docs/gpu.md). Launches from one thread per stream; they never
// wait.
#ifndef CRUMB_GPU_CODEC_CUDA_CODEC_H_
#define CRUMB_GPU_CODEC_CUDA_CODEC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/cuda_launch.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/device/cuda_memory.h"

namespace crumb {

class CudaCodec final : public GpuCodec {
 public:
  // FAILED_PRECONDITION: no kernel for this part (head dims other than 64, 128 and 256, groups
  // below 16 elements) or too little shared memory on the device; the message names layer, tensor
  // and remedy. UNAVAILABLE, RESOURCE_EXHAUSTED, INVALID_ARGUMENT: the device. Start-up only;
  // waits.
  static absl::StatusOr<std::unique_ptr<CudaCodec>> Create(
      const PartShape& shape, const CodecDescriptor& descriptor,
      std::shared_ptr<const RotationSet> rotations, int device);
  // One for each descriptor, for the same part and set; the crumb ones share their calibration.
  static std::vector<absl::StatusOr<std::unique_ptr<CudaCodec>>> CreateAll(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      std::shared_ptr<const RotationSet> rotations, int device);

  const PayloadLayout& layout() const { return plan_.layout(); }
  const CodecDescriptor& descriptor() const override { return plan_.descriptor(); }
  int device() const override { return device_; }
  uint32_t payload_bytes() const override { return plan_.layout().payload_bytes(); }
  // Whether Encode exists for this descriptor and fits the device; the status says why not.
  bool encodes() const override { return encode_status_.ok(); }
  const absl::Status& encode_status() const { return encode_status_; }

  // REQUIRES besides: addresses and strides of places are even.
  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const override;
  // `effort` matters to the crumb kinds alone.
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const override;
  absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const override;
  EncodeReport ReportOf(const CudaPageReport& report) const override;

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
  // By rotation set.
  using KnownMetrics = std::map<Sha256, std::shared_ptr<const QueryMetrics>>;
  static absl::StatusOr<std::unique_ptr<CudaCodec>> Make(CodecPlan plan, KnownMetrics* known,
                                                         int device);

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
