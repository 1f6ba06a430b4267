// Page reports before an encode.
#include <cuda_runtime.h>

#include "gpu/codec/cuda_launch.h"

namespace crumb {
namespace cuda {
namespace {

constexpr uint32_t kThreads = 128;

__global__ void Reset(CudaPageReport* reports, uint32_t count) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  CudaPageReport report = {};
  report.bad_place = ~0ull;
  reports[i] = report;
}

}  // namespace
}  // namespace cuda

// WHY the code and not the device: a newer device also runs what was compiled for an older one.
int KernelsOverlap(bool* out) {
  cudaFuncAttributes attributes = {};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, &cuda::Reset);
  if (error != cudaSuccess) (void)cudaGetLastError();  // the next launch must not find it
  *out = attributes.ptxVersion >= 90;
  return error;
}

int LaunchResetReports(CudaPageReport* reports, uint32_t count, void* stream) {
  const uint32_t blocks = (count + cuda::kThreads - 1) / cuda::kThreads;
  cuda::Reset<<<blocks, cuda::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(reports, count);
  return cudaGetLastError();  // taken: the next launch must not find it
}

}  // namespace crumb
