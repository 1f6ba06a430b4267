// The probe of a CUDA build. Never creates a context: it only asks for properties.
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "gpu/device/cuda_driver.cuh"
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

// The runtime has no word for it. False also where the driver does not know.
bool SharedByMps(int device) {
  static const auto attribute_of =
      DriverCall<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute", 2000);
  int value = 0;
  return attribute_of != nullptr &&
         attribute_of(&value, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) == CUDA_SUCCESS &&
         value != 0;
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
                             .memory_bytes = properties.totalGlobalMem,
                             .mps = SharedByMps(device)});
  }
  if (probe.devices.empty()) probe.note = "the driver lists no GPU";
  return probe;
}

}  // namespace crumb
