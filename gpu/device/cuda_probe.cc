// The probe of a CUDA build. Never creates a context: it only asks for properties.
#include <cuda_runtime_api.h>

#include "gpu/device/cuda_status.h"
#include "gpu/device/gpu_probe.h"

namespace crumb {
namespace {

std::string VersionText(int version) {  // 13000: 13.0
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// WHY not CUDA's own words alone: without a driver it says that the driver is too old.
std::string WhyNone(const GpuProbe& probe, cudaError_t error) {
  std::string note = "no usable GPU: ";
  if (probe.driver_version == 0) {
    return note + "there is no NVIDIA driver (libcuda.so.1): " + CudaRemedy(cudaErrorNoDevice);
  }
  note += cudaGetErrorString(error);
  if (error == cudaErrorInsufficientDriver) {
    note = "no usable GPU: the driver is for CUDA " + VersionText(probe.driver_version) +
           ", this build needs " + VersionText(probe.runtime_version);
  }
  return note + ": " + CudaRemedy(error);
}

}  // namespace

GpuProbe ProbeGpus() {
  GpuProbe probe;
  probe.built_with_cuda = true;
  // A missing driver is an answer, not a fault: both calls then report it.
  (void)cudaRuntimeGetVersion(&probe.runtime_version);
  (void)cudaDriverGetVersion(&probe.driver_version);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    probe.note = WhyNone(probe, error);
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
