// What one result of the kernel means for one request: done, go on, or failed. Pure functions, so
// that every odd result can be tested without a ring. Never trusts a count it did not check.
#ifndef CRUMB_STORAGE_DEVICE_IO_PROGRESS_H_
#define CRUMB_STORAGE_DEVICE_IO_PROGRESS_H_

#include <cstdint>

#include "storage/device/block_device.h"

namespace crumb {

// Results without progress (EINTR, EAGAIN, EBUSY, a short count within a block) until a request
// fails with what came last.
inline constexpr uint32_t kIoRetriesMax = 256;

struct IoProgress {
  uint32_t done = 0;  // bytes, a multiple of the device's alignment
  uint32_t retries = 0;
};

enum class IoStep : uint8_t { kDone, kResubmit, kFailed };

struct IoVerdict {
  IoStep step = IoStep::kDone;
  int error = 0;  // positive errno if kFailed
};

// 0 or EINVAL: whether a request of `device_bytes` and `alignment` may be issued at all.
int CheckIoRequest(const IoRequest& request, uint64_t device_bytes, uint32_t alignment);

// `result` is what read/write/fsync returned for the rest of `request`: a count or -errno.
IoVerdict AdvanceIo(const IoRequest& request, uint32_t alignment, int64_t result,
                    IoProgress* progress);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_IO_PROGRESS_H_
