// GpuShare: a range of device memory that one process of a host offers to another, as it travels
// between them. Bytes from outside: whoever maps one checks it against what the driver says of the
// allocation (cuda_share.h). Knows no CUDA type. Any thread.
#ifndef CRUMB_GPU_DEVICE_GPU_SHARE_H_
#define CRUMB_GPU_DEVICE_GPU_SHARE_H_

#include <array>
#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr size_t kGpuHandleBytes = 64;  // of CUDA's handles for memory and for events
using GpuHandle = std::array<uint8_t, kGpuHandleBytes>;
using GpuUuid = std::array<uint8_t, 16>;

struct GpuShare {
  GpuHandle handle = {};  // cudaIpcMemHandle_t of the whole allocation
  GpuUuid device = {};    // where it lies: numbers of devices differ between processes
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;  // of the range in the allocation
  uint64_t bytes = 0;   // of the range
  friend bool operator==(const GpuShare&, const GpuShare&) = default;
};

inline constexpr size_t kGpuShareBytes = kGpuHandleBytes + 16 + 3 * 8;
inline constexpr uint64_t kGpuAllocationBytesMax = 1ull << 43;

// Whether a range that is not empty lies in an allocation.
constexpr bool LiesWithin(uint64_t offset, uint64_t bytes, uint64_t allocation_bytes) {
  return bytes != 0 && offset < allocation_bytes && bytes <= allocation_bytes - offset;
}

// Little endian, in the order of the fields.
std::array<uint8_t, kGpuShareBytes> EncodeGpuShare(const GpuShare& share);
// INVALID_ARGUMENT: another length, an empty range, or one that passes its allocation.
absl::StatusOr<GpuShare> ParseGpuShare(Bytes data);

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_GPU_SHARE_H_
