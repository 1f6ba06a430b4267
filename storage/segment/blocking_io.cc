// See blocking_io.h. Start-up and shutdown.
#include "storage/segment/blocking_io.h"

#include <poll.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr int kMomentMs = 50;
constexpr size_t kBatch = 64;

}  // namespace

bool DeviceWaiter::Wait() {
  const int fd = device_->wake_fd();
  if (fd < 0) return ++polls_ < kDevicePollsMax;
  pollfd entry = {fd, POLLIN, 0};
  if (::poll(&entry, 1, kMomentMs) == 0) silent_ms_ += kMomentMs;
  return silent_ms_ < kDeviceSilenceMsMax;
}

absl::Status RunBlocking(BlockDevice* device, std::vector<IoRequest> requests,
                         std::vector<int>* errors) {
  CRUMB_CHECK(device->in_flight() == 0);
  errors->assign(requests.size(), -1);
  DeviceWaiter waiter(device);
  size_t queued = 0, done = 0;
  while (done < requests.size()) {
    while (queued < requests.size()) {
      requests[queued].token = queued;
      if (!device->Queue(requests[queued])) break;
      ++queued;
    }
    device->Submit();
    std::array<IoCompletion, kBatch> completions;
    const size_t count = device->Poll(absl::MakeSpan(completions));
    for (size_t i = 0; i < count; ++i) {
      CRUMB_CHECK(completions[i].token < requests.size());
      errors->at(completions[i].token) = completions[i].error;
    }
    done += count;
    if (count > 0) {
      waiter.SawProgress();
    } else if (!waiter.Wait()) {
      return absl::DeadlineExceededError("the device of the log does not answer");
    }
  }
  return absl::OkStatus();
}

absl::Status RunOne(BlockDevice* device, const IoRequest& request, const char* what) {
  std::vector<int> errors;
  CRUMB_TRY(RunBlocking(device, {request}, &errors));
  if (errors[0] == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errors[0])));
}

}  // namespace crumb
