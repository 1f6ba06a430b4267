// GpuLinks of CUDA devices: a stream, tables in pinned and in device memory, and a worker's event.
// Control thread: may wait for the device. Knows no CUDA type.
#ifndef CRUMB_GPU_CODEC_CUDA_LINK_H_
#define CRUMB_GPU_CODEC_CUDA_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cachesvc/base/status.h"
#include "gpu/codec/gpu_link.h"
#include "gpu/device/cuda_queue.h"
#include "gpu/device/gpu_share.h"

namespace crumb {

struct CudaLinkOptions {
  int device = 0;
  // Of the worker, which records it before each request. None: no worker writes or reads memory
  // that the link's jobs touch.
  std::optional<GpuHandle> event = std::nullopt;
  // The same of a worker in this process, instead of `event`: puts its wait on a stream.
  std::function<absl::Status(StreamHandle)> wait_for_worker = nullptr;
  StreamPriority priority = StreamPriority::kNormal;
  // The DRAM pool, registered in slices (RegisteredMemory). 0: none.
  const uint8_t* slices_from = nullptr;
  uint64_t slice_bytes = 0;
};

// Errors name the device and the remedy; for an event that does not open, the worker may be gone.
absl::StatusOr<std::shared_ptr<GpuLink>> MakeCudaLink(const CudaLinkOptions& options);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_LINK_H_
