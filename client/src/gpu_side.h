// GpuSide: what the client asks of CUDA: how to name memory to the daemon, and events that the
// daemon's streams wait for. gpu_side_cuda.cc asks CUDA; gpu_side_none.cc is the build without it,
// which refuses with the remedy. Knows no CUDA type. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_GPU_SIDE_H_
#define CRUMB_CLIENT_SRC_GPU_SIDE_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "gpu/device/gpu_share.h"

namespace crumb::client {

// An event of this process that another one waits for: what the GPU did up to its last record.
class GpuMark {
 public:
  virtual ~GpuMark() = default;
  virtual const GpuHandle& handle() const = 0;
  // Neither waits: they put it on the stream (a cudaStream_t; null: the legacy default stream of
  // the event's GPU). INVALID_ARGUMENT and others: a stream of another GPU, a lost device.
  virtual absl::Status Record(void* stream) = 0;
  virtual absl::Status Wait(void* stream) = 0;
};

class GpuSide {
 public:
  virtual ~GpuSide() = default;
  // INVALID_ARGUMENT, FAILED_PRECONDITION: not device memory, or none that another process can map;
  // the message has the remedy. UNIMPLEMENTED: this library has no CUDA.
  virtual absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid& device) = 0;
};

std::unique_ptr<GpuSide> MakeGpuSide();

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GPU_SIDE_H_
