// Ring over io_uring. Start-up creates it (blocking), then one thread at a time uses it.
// WHY a plain ring: SINGLE_ISSUER and DEFER_TASKRUN bind a ring to the thread that made it, and
// with DEFER_TASKRUN a look at the completion queue shows nothing before io_uring_get_events;
// start-up and shard are different threads here, and the gain is under a percent at our sizes.
#ifndef CRUMB_STORAGE_DEVICE_URING_RING_H_
#define CRUMB_STORAGE_DEVICE_URING_RING_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "storage/device/ring.h"

namespace crumb {

// `fd` outlives the ring. UNAVAILABLE, with the reason, where the kernel refuses io_uring or lacks
// the operations we use.
absl::StatusOr<std::unique_ptr<Ring>> MakeUringRing(int fd, uint32_t depth);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_URING_RING_H_
