// Registers only: what it costs does not depend on what others do to the caches.
#include "gpu/device/cuda_busy.h"
#include "gpu/device/cuda_status.h"

namespace crumb {
namespace {

constexpr uint32_t kThreads = 256;

__global__ void Busy(uint64_t steps, float* sink) {
  float a = static_cast<float>(threadIdx.x), b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
  for (uint64_t i = 0; i < steps; i += 4) {
    a = a * 0.5f + 1.0f;
    b = b * 0.5f + 1.0f;
    c = c * 0.5f + 1.0f;
    d = d * 0.5f + 1.0f;
  }
  // Never true, and the compiler cannot know.
  if (a + b + c + d < 0.0f) *sink = a;
}

}  // namespace

absl::Status LaunchBusy(uint32_t blocks, uint64_t steps, float* sink, StreamHandle stream) {
  Busy<<<blocks, kThreads, 0, stream>>>(steps, sink);
  return TakenCudaStatus(cudaGetLastError(), "starting a load", -1);
}

}  // namespace crumb
