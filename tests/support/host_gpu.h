// A GPU made of host memory that processes share: what the client and tools ask of CUDA on one side
// (host_gpu_worker.cc) and what the daemon asks on the other (host_gpus.cc), in place of the files
// that ask CUDA or say that there is none: a program that lists one of them among its own sources
// gets it instead of the library's. Copies and kernels are done when their calls return, so events
// have nothing to order here. Tests only.
#ifndef CRUMB_TESTS_SUPPORT_HOST_GPU_H_
#define CRUMB_TESTS_SUPPORT_HOST_GPU_H_

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "gpu/device/gpu_share.h"

namespace crumb::testing {

inline constexpr GpuUuid kHostGpu = {'h', 'o', 's', 't'};

// An allocation: a memfd of a process.
struct HostAllocation {
  uint32_t magic = 0x54534f48;
  int32_t pid = 0;
  int32_t fd = -1;
};

inline GpuHandle HandleOf(const HostAllocation& allocation) {
  GpuHandle handle = {};
  std::memcpy(handle.data(), &allocation, sizeof(allocation));
  return handle;
}

inline std::optional<HostAllocation> AllocationOf(const GpuHandle& handle) {
  HostAllocation allocation;
  std::memcpy(&allocation, handle.data(), sizeof(allocation));
  if (allocation.magic != HostAllocation().magic || allocation.pid <= 0) return std::nullopt;
  return allocation;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_HOST_GPU_H_
