// DeviceArena: one allocation of a GPU's memory, released with the object. Never grows, never
// moves; the host must not touch it. Made and released at start-up and at the end only: both may
// wait for the whole device. Any thread, one at a time.
#ifndef CRUMB_GPU_POOL_CUDA_ARENA_H_
#define CRUMB_GPU_POOL_CUDA_ARENA_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct DeviceMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // this process's context counts as taken: asking makes it
};
// For SizeHbmPool. Leaves the device current on this thread.
absl::StatusOr<DeviceMemory> AskDeviceMemory(int device);

enum class DeviceArenaKind : uint8_t {
  kMalloc,  // one cudaMalloc: other processes map it by CUDA IPC
  kVmm,     // virtual memory of the driver: other processes map it by a file descriptor
};

struct DeviceArenaOptions {
  int device = 0;
  uint64_t bytes = 0;  // a multiple of kHbmStepBytes
  DeviceArenaKind kind = DeviceArenaKind::kMalloc;
};

class DeviceArena {
 public:
  DeviceArena();  // empty
  // The memory holds anything. Leaves the device current on this thread. RESOURCE_EXHAUSTED says
  // how much is free and the remedy; FAILED_PRECONDITION: this device or driver has no such kind.
  static absl::StatusOr<DeviceArena> Create(const DeviceArenaOptions& options);
  // REQUIRES: nothing on a stream still uses the memory.
  ~DeviceArena();
  DeviceArena(DeviceArena&& other) noexcept;
  DeviceArena& operator=(DeviceArena&& other) noexcept;

  MutableBytes memory() const;  // an address of the device, aligned for PagePool::CreateOver
  int device() const;           // -1: empty
  DeviceArenaKind kind() const;
  // From now on streams of another device touch the memory, too: without this a kernel there loses
  // its context. FAILED_PRECONDITION: that device cannot reach this one. Leaves it current on this
  // thread.
  absl::Status LetReach(int device) const;
  // Of kVmm: a new file descriptor for all of the memory, the caller's to close. It keeps the
  // memory while it is open, as a mapping made from it does. FAILED_PRECONDITION for kMalloc.
  absl::StatusOr<int> ExportFd() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_CUDA_ARENA_H_
