// Ring: a raw submission queue and its results, with all the moods of io_uring: it may take only
// some of what was prepared, refuse for now, return short counts and results in any order.
// ring_device makes a BlockDevice of it. Implementations: uring_ring, pool_ring, fakes in tests.
// One thread at a time owns a ring.
#ifndef CRUMB_STORAGE_DEVICE_RING_H_
#define CRUMB_STORAGE_DEVICE_RING_H_

#include <sys/uio.h>

#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "storage/device/block_device.h"

namespace crumb {

struct RingOp {
  IoOp op = IoOp::kRead;
  uint64_t offset = 0;
  uint8_t* data = nullptr;
  uint32_t bytes = 0;
  int buffer = -1;  // index of the registered slice that `data` lies in; -1: none
  // Not 0: scattered memory instead of `data`, `bytes` in all; stays valid until the result.
  const iovec* vectors = nullptr;
  uint32_t vector_count = 0;
  uint64_t user_data = 0;
};

struct RingResult {
  uint64_t user_data = 0;
  int32_t result = 0;  // count or -errno
};

class Ring {
 public:
  virtual ~Ring() = default;
  // False when the submission queue is full.
  virtual bool Prepare(const RingOp& op) = 0;
  // How many prepared operations were taken, in the order of Prepare; or -errno, nothing taken.
  virtual int Submit() = 0;
  // Prepared operations that were not taken will never run.
  virtual void Withdraw() = 0;
  // PROMISE: each result is handed out once; the queue was advanced before this returns.
  virtual size_t Reap(absl::Span<RingResult> results) = 0;
  // Blocks until Reap may yield something. REQUIRES: something was taken and not reaped.
  virtual void Wait() = 0;
  virtual absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) = 0;
  virtual int wake_fd() const = 0;
  // Makes wake_fd readable: there is work that no result will announce.
  virtual void Wake() = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_RING_H_
