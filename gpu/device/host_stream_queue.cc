// memcpy and a call, in order.
#include "gpu/device/host_stream_queue.h"

#include <cstring>

#include "cachesvc/base/check.h"

namespace crumb {

HostStreamQueue::HostStreamQueue(uint32_t work_max) : ring_(work_max) {
  CRUMB_CHECK(work_max >= 1);
}

bool HostStreamQueue::Submit(const StreamWork& work) {
  if (in_flight() == ring_.size()) return false;
  for (const StreamCopy& copy : work.copies) {
    if (copy.bytes > 0) std::memcpy(copy.dst, copy.src, copy.bytes);
  }
  const bool ok = work.launch == nullptr || work.launch(work.arg, nullptr).ok();
  ring_[submitted_++ % ring_.size()] = {.token = work.token, .ok = ok};
  return true;
}

size_t HostStreamQueue::Poll(absl::Span<StreamDone> done) {
  size_t count = 0;
  while (count < done.size() && polled_ < submitted_) {
    done[count++] = ring_[polled_++ % ring_.size()];
  }
  return count;
}

}  // namespace crumb
