// Hands jobs to the worker pool; nothing is kept here.
#include "gpu/device/host_queue.h"

#include "cachesvc/base/check.h"

namespace crumb {

HostQueue::HostQueue(const HostQueueOptions& options) : pool_(options.threads, options.jobs_max) {
  CRUMB_CHECK(options.threads >= 1);
  CRUMB_CHECK(options.jobs_max >= 1);
}

bool HostQueue::Submit(const DeviceJob& job) {
  CRUMB_CHECK(job.run != nullptr);
  return pool_.Submit(Job{job.run, job.arg, job.token});
}

size_t HostQueue::Poll(absl::Span<uint64_t> done) { return pool_.Poll(done); }
size_t HostQueue::in_flight() const { return pool_.in_flight(); }
uint32_t HostQueue::worker_count() const { return static_cast<uint32_t>(pool_.threads()); }
bool HostQueue::Arm() { return pool_.Arm(); }
int HostQueue::wake_fd() const { return pool_.wake_fd(); }

}  // namespace crumb
