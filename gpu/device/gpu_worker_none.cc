// The build without CUDA: says so.
#include "gpu/device/gpu_worker.h"

namespace crumb {

absl::StatusOr<std::unique_ptr<GpuWorker>> OpenGpuWorker(int) {
  return absl::UnavailableError(
      "this program was built without CUDA: configure with -DCRUMB_CUDA=ON on a machine that has "
      "nvcc 13.0 or newer");
}

}  // namespace crumb
