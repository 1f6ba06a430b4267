// The driver's calls, looked up at run time: nothing of ours links the driver, so that programs
// start without one and go on with an older one. Any thread. For files that include CUDA's headers.
#ifndef CRUMB_GPU_DEVICE_CUDA_DRIVER_CUH_
#define CRUMB_GPU_DEVICE_CUDA_DRIVER_CUH_

#include <cuda_runtime_api.h>

namespace crumb {

// A call as the driver of CUDA `version` (13000: 13.0) has it, or null. Function: its PFN_ type of
// cudaTypedefs.h.
template <typename Function>
Function DriverCall(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();  // the next call must not find it
    return nullptr;
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_DRIVER_CUH_
