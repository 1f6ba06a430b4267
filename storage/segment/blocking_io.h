// Requests to a block device that the caller waits for: start-up and shutdown only, never on a
// shard that serves. Bounded: a device that completes nothing for kDeviceSilenceMsMax is given up.
#ifndef CRUMB_STORAGE_SEGMENT_BLOCKING_IO_H_
#define CRUMB_STORAGE_SEGMENT_BLOCKING_IO_H_

#include <cstdint>
#include <vector>

#include "cachesvc/base/status.h"
#include "storage/device/block_device.h"

namespace crumb {

inline constexpr uint32_t kDeviceSilenceMsMax = 60'000;
inline constexpr uint64_t kDevicePollsMax = 1ull << 24;  // of a device without a wake fd

// Waits once for something to poll: at most a moment. Counts towards the limits above.
class DeviceWaiter {
 public:
  explicit DeviceWaiter(const BlockDevice* device) : device_(device) {}
  // False once the device was silent for too long.
  bool Wait();
  void SawProgress() { silent_ms_ = 0, polls_ = 0; }

 private:
  const BlockDevice* device_;
  uint32_t silent_ms_ = 0;
  uint64_t polls_ = 0;
};

// Runs all requests, as many at once as the device takes, and puts each one's errno (0 = done)
// into `errors`, in the order of `requests`. Tokens are overwritten. REQUIRES: nothing else is in
// flight. DEADLINE_EXCEEDED if the device falls silent: buffers must then stay where they are.
absl::Status RunBlocking(BlockDevice* device, std::vector<IoRequest> requests,
                         std::vector<int>* errors);

// One request; its errno as a status that names `what`.
absl::Status RunOne(BlockDevice* device, const IoRequest& request, const char* what);

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_BLOCKING_IO_H_
