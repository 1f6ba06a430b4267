// cudaMalloc and cudaHostAlloc with their owners.
#include "gpu/device/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "cachesvc/base/check.h"
#include "gpu/device/cuda_status.h"

namespace crumb {

// A failure to free has no remedy: after a lost context every call fails, and the process ends.
void DeviceBuffer::Free::operator()(std::byte* memory) const {
  if (cudaSetDevice(device) == cudaSuccess) (void)cudaFree(memory);
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Create(int device, uint64_t bytes) {
  CRUMB_CHECK(bytes > 0);
  CRUMB_TRY(CheckCudaDevice(device));
  const std::string what = "no " + std::to_string(bytes) + " bytes of GPU memory";
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), what, device));
  void* memory = nullptr;
  CRUMB_TRY(TakenCudaStatus(cudaMalloc(&memory, bytes), what, device));
  DeviceBuffer buffer;
  buffer.memory_ = {static_cast<std::byte*>(memory), Free(device)};
  buffer.size_ = bytes;
  return buffer;
}

void PinnedBuffer::Free::operator()(std::byte* memory) const { (void)cudaFreeHost(memory); }

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(int device, uint64_t bytes) {
  CRUMB_CHECK(bytes > 0);
  CRUMB_TRY(CheckCudaDevice(device));
  const std::string what = "no " + std::to_string(bytes) + " bytes of pinned host memory";
  CRUMB_TRY(CudaStatus(cudaSetDevice(device), what, device));
  void* memory = nullptr;
  void* mapped = nullptr;
  cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  PinnedBuffer buffer;
  if (error == cudaSuccess) {
    buffer.memory_.reset(static_cast<std::byte*>(memory));
    error = cudaHostGetDevicePointer(&mapped, memory, 0);
  }
  CRUMB_TRY(TakenCudaStatus(error, what, device));
  std::memset(memory, 0, bytes);
  buffer.device_data_ = static_cast<std::byte*>(mapped);
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace crumb
