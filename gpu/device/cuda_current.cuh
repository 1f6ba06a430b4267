// Which device a call is meant for: calls of the runtime go by the current one. For files that
// include CUDA's headers.
#ifndef CRUMB_GPU_DEVICE_CUDA_CURRENT_CUH_
#define CRUMB_GPU_DEVICE_CUDA_CURRENT_CUH_

#include <cuda_runtime_api.h>

#include "cachesvc/base/status.h"
#include "gpu/device/cuda_status.h"
#include "gpu/device/stream_queue.h"

namespace crumb {

// Makes a device current, and the one before again. Streams and mappings go by the current one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
    error_ = cudaSetDevice(device);
  }
  ~OnDevice() {
    if (before_ >= 0) (void)cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = -1;
  cudaError_t error_ = cudaSuccess;
};

// The streams that every device has by one name: which one is meant goes by the current device.
inline bool IsDefaultStream(StreamHandle stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

template <typename Call>
absl::Status OnStream(StreamHandle stream, int device, const char* what, Call call) {
  if (!IsDefaultStream(stream)) return TakenCudaStatus(call(), what, device);
  const OnDevice current(device);
  CRUMB_TRY(TakenCudaStatus(current.error(), what, device));
  return TakenCudaStatus(call(), what, device);
}

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_CURRENT_CUH_
