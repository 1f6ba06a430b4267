// A store to an address that no allocation holds.
#include "gpu/device/cuda_status.h"
#include "tests/conformance/gpu/cuda_trap.h"

namespace crumb {
namespace {

__global__ void Trap(int* nowhere) { *nowhere = 1; }

}  // namespace

absl::Status LaunchTrap(void*, StreamHandle stream) noexcept {
  Trap<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(size_t{1} << 46));
  return CudaStatus(cudaGetLastError(), "trap", 0);
}

}  // namespace crumb
