// WorkerGpu: kernels of this process on the GPU whose memory it lends: codecs, a stream of the
// client's own, and host memory that both it and the daemon reach. gpu_side_cuda.cc asks CUDA;
// tests have the host's. Knows no CUDA type. Thread: the Client's, one at a time.
#ifndef CRUMB_CLIENT_SRC_WORKER_GPU_H_
#define CRUMB_CLIENT_SRC_WORKER_GPU_H_

#include <functional>
#include <memory>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/cuda_codecs.h"
#include "gpu/codec/gpu_link.h"

namespace crumb::client {

class WorkerGpu {
 public:
  virtual ~WorkerGpu() = default;

  // Calls `work` with the GPU current on this thread, and the device of before again afterwards.
  virtual void Run(const std::function<void()>& work) = 0;
  // Page-locked and known to the GPU while the returned thing lives. `memory`: whole pages.
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterHost(MutableBytes memory) = 0;
  virtual absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(
      std::function<absl::Status(StreamHandle)> wait_for_worker) = 0;
  // As MakeCudaCodecs: the raw one first.
  virtual std::vector<GpuCodecMade> MakeCodecs(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      const std::shared_ptr<const RotationSet>& rotations) = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_WORKER_GPU_H_
