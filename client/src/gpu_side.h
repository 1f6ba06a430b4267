// GpuSide: what the client asks of CUDA: how to name memory to the daemon, and words that say how
// far its streams are. gpu_side_cuda.cc asks CUDA; gpu_side_none.cc is the build without it, which
// refuses with the remedy. Knows no CUDA type. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_GPU_SIDE_H_
#define CRUMB_CLIENT_SRC_GPU_SIDE_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "client/src/worker_gpu.h"
#include "gpu/device/gpu_share.h"

namespace crumb::client {

// A word of shared memory that says how far the GPU has come.
class GpuMark {
 public:
  virtual ~GpuMark() = default;
  virtual int word_fd() const = 0;  // a sealed file whose first eight bytes it is
  // None waits: they put it on the stream (a cudaStream_t; null: the legacy default stream of the
  // mark's GPU), or ask. INVALID_ARGUMENT and others: a stream of another GPU, a lost device.
  virtual absl::StatusOr<bool> Idle(void* stream) = 0;  // nothing is on it now
  virtual absl::Status Record(void* stream, uint64_t value) = 0;
  virtual absl::Status Wait(void* stream) = 0;  // for the last record
};

class GpuSide {
 public:
  virtual ~GpuSide() = default;
  // INVALID_ARGUMENT, FAILED_PRECONDITION: not device memory, or none that another process can map;
  // the message has the remedy. UNIMPLEMENTED: this library has no CUDA.
  virtual absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) = 0;
  // Whose memory that is, also where Share refuses it.
  virtual absl::StatusOr<GpuUuid> DeviceOf(const void* address);
  virtual absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid& device) = 0;
  // Any thread. UNIMPLEMENTED: as Share.
  virtual absl::StatusOr<std::unique_ptr<WorkerGpu>> OpenWorkerGpu(const GpuUuid& device);
};

std::unique_ptr<GpuSide> MakeGpuSide();

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GPU_SIDE_H_
