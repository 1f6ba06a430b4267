// The probe of a CUDA build. Never creates a context: it only asks for properties.
#include <cuda_runtime_api.h>

#include "gpu/device/gpu_probe.h"

namespace crumb {

GpuProbe ProbeGpus() {
  GpuProbe probe;
  probe.built_with_cuda = true;
  // A missing driver is an answer, not a fault: both calls then report it.
  (void)cudaRuntimeGetVersion(&probe.runtime_version);
  (void)cudaDriverGetVersion(&probe.driver_version);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    probe.note = std::string("no usable GPU: ") + cudaGetErrorString(error);
    return probe;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    probe.devices.push_back({.name = properties.name,
                             .compute_major = properties.major,
                             .compute_minor = properties.minor,
                             .memory_bytes = properties.totalGlobalMem});
  }
  if (probe.devices.empty()) probe.note = "the driver lists no GPU";
  return probe;
}

}  // namespace crumb
