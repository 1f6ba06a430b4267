// The GPUs of a build without CUDA: none.
#include "cachesvc/server/gpus.h"

namespace crumb {

bool BuiltWithCuda() { return false; }

absl::StatusOr<std::unique_ptr<Gpus>> OpenGpus(uint32_t /*imports_most*/) {
  return absl::UnimplementedError(
      "this crumbd was built without CUDA: configure with -DCRUMB_CUDA=ON on a machine that has "
      "nvcc 13.0 or newer");
}

}  // namespace crumb
