// CudaRawCodec: the GpuCodec of raw pages. Moves rows as they are, of any dtype and head dims,
// between a worker's paged tensors and payloads in canonical order (payload_layout.h), in device
// memory or in registered host memory. Looks at no value: a NaN is found by whoever reads the page.
// Immutable after Create; launches from one thread per stream; they never wait.
#ifndef CRUMB_GPU_CODEC_CUDA_RAW_CODEC_H_
#define CRUMB_GPU_CODEC_CUDA_RAW_CODEC_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/cuda_raw_params.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/codec/payload_layout.h"
#include "gpu/device/cuda_memory.h"

namespace crumb {

class CudaRawCodec final : public GpuCodec {
 public:
  // FAILED_PRECONDITION: rows of an odd number of bytes; the message names layer and remedy. Other
  // errors: the device. Start-up only; waits.
  static absl::StatusOr<std::unique_ptr<CudaRawCodec>> Create(const PartShape& shape, int device);

  const CodecDescriptor& descriptor() const override { return descriptor_; }
  int device() const override { return device_; }
  uint32_t payload_bytes() const override { return layout_.payload_bytes(); }
  bool encodes() const override { return true; }

  // REQUIRES besides: addresses and strides of places are even.
  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const override;
  // Leaves reports as they are: every page fits.
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const override;
  absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const override;
  EncodeReport ReportOf(const CudaPageReport& report) const override;

 private:
  explicit CudaRawCodec(PayloadLayout layout) : layout_(std::move(layout)) {}
  // The table, with addresses and sizes in units.
  std::vector<CudaRawTensor> MakeTable();
  CudaRawLaunch LaunchOf(const CudaPages& pages, StreamHandle stream) const;

  const CodecDescriptor descriptor_;
  const PayloadLayout layout_;
  DeviceBuffer table_;
  uint32_t tensors_ = 0;  // of the table
  uint32_t chunks_ = 0;   // of a page
  uint32_t unit_bytes_ = 0;
  uint32_t multiprocessors_ = 0;
  int device_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_RAW_CODEC_H_
