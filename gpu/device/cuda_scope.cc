// Two calls of the runtime.
#include "gpu/device/cuda_scope.h"

#include <cuda_runtime_api.h>

namespace crumb {

CudaScope::CudaScope(int device) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
  error_ = before_ == device ? cudaSuccess : cudaSetDevice(device);
}

CudaScope::~CudaScope() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

}  // namespace crumb
