// BlockDevice: asynchronous reads and writes on one file or raw device. Implementations:
// file_device (io_uring with O_DIRECT; a thread pool where the kernel refuses io_uring), mem_device
// (RAM, for tests and the simulator), fault_device (decorator that injects faults). One thread at a
// time owns a device (start-up, then the shard). PROMISE: a completion is reported exactly once,
// and only when the whole range was transferred or an error is known: short counts, EINTR, EAGAIN
// and EBUSY are handled below this line.
#ifndef CRUMB_STORAGE_DEVICE_BLOCK_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_BLOCK_DEVICE_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

enum class IoOp : uint8_t {
  kRead,
  kWrite,         // volatile until a later kSync completes
  kWriteDurable,  // complete only once on stable storage (RWF_DSYNC)
  kSync,          // everything completed before it was queued is on stable storage
};

struct IoRequest {
  IoOp op = IoOp::kRead;
  uint64_t offset = 0;      // multiple of alignment()
  uint8_t* data = nullptr;  // aligned to alignment(); stays valid until the completion
  uint32_t bytes = 0;       // multiple of alignment()
  uint64_t token = 0;       // comes back
};

struct IoCompletion {
  uint64_t token = 0;
  int error = 0;  // 0 or a positive errno; EIO for end-of-file inside a read
};

class BlockDevice {
 public:
  virtual ~BlockDevice() = default;
  virtual uint64_t size_bytes() const = 0;
  virtual uint32_t alignment() const = 0;  // power of two, <= 4096
  // Memory that later requests will use, in slices of at most 1 GiB; speeds up, never required (an
  // error means only that requests take the slower way). REQUIRES: nothing is in flight.
  virtual absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) = 0;
  // False when the device's queue is full: the caller keeps the request and tries after a Poll.
  // A request that is misaligned or out of range completes with EINVAL.
  virtual bool Queue(const IoRequest& request) = 0;
  // Hands queued requests to the kernel; once per turn.
  virtual void Submit() = 0;
  virtual size_t Poll(absl::Span<IoCompletion> completions) = 0;
  virtual size_t in_flight() const = 0;  // queued and not yet reported by Poll
  // Readable when Poll may yield something. -1: must be polled; then Submit and Poll calls alone
  // make progress, whatever any clock says (SegmentLog::Open waits by calling them).
  virtual int wake_fd() const = 0;
  // Changes the size, a multiple of alignment(). Any thread, one call at a time, may block, while
  // the owner goes on using what lies below both sizes. Growing: the new part is reserved where the
  // device can, and size_bytes() follows last. RESOURCE_EXHAUSTED: no room; FAILED_PRECONDITION: of
  // a fixed size; INVALID_ARGUMENT. After an error nothing has changed.
  // REQUIRES: nothing is in flight beyond the new end, nor comes before this returned.
  virtual absl::Status Resize(uint64_t bytes) = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_BLOCK_DEVICE_H_
