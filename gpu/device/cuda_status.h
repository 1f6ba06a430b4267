// CUDA's errors as values: what failed, on which device, what to do about it. Knows no CUDA type,
// so that any header may use it. Any thread.
#ifndef CRUMB_GPU_DEVICE_CUDA_STATUS_H_
#define CRUMB_GPU_DEVICE_CUDA_STATUS_H_

#include <string_view>

#include "cachesvc/base/status.h"

namespace crumb {

// `error` is a cudaError_t (a CUresult has the same numbers); 0 is OK. Allocates only for an error.
absl::Status CudaStatus(int error, std::string_view what, int device);

// The same for a call of the runtime, which keeps its last error: taken from it, so that the next
// call does not report it as its own.
absl::Status TakenCudaStatus(int error, std::string_view what, int device);

// What to do about an error, as CudaStatus says it.
const char* CudaRemedy(int error);

// OK if this process can use that device; the error says whether driver or device is missing.
absl::Status CheckCudaDevice(int device);

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_STATUS_H_
