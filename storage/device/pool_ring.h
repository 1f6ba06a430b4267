// Ring over a worker pool of pread/pwrite/fdatasync: where the kernel refuses io_uring (default
// seccomp profiles of containers do). Same promises, more CPU per operation.
// One thread at a time owns it; its workers touch only the file and the operations they were given.
#ifndef CRUMB_STORAGE_DEVICE_POOL_RING_H_
#define CRUMB_STORAGE_DEVICE_POOL_RING_H_

#include <cstdint>
#include <memory>

#include "storage/device/ring.h"

namespace crumb {

struct PoolRingOptions {
  int fd = -1;  // outlives the ring
  uint32_t depth = 256;
  uint32_t threads = 4;
};

std::unique_ptr<Ring> MakePoolRing(const PoolRingOptions& options);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_POOL_RING_H_
