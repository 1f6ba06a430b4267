// The schedule of simulated device jobs.
#include "tests/sim/sim_device_queue.h"

namespace crumb::sim {

SimDeviceQueue::SimDeviceQueue(SimContext* context, uint32_t workers, uint32_t jobs_max)
    : context_(context), workers_(workers), jobs_max_(jobs_max), rng_(context->rng.Next()) {}

SimDeviceQueue::~SimDeviceQueue() { context_->events.CancelAll(this); }

bool SimDeviceQueue::Submit(const DeviceJob& job) {
  // Full now and then, long before the bound: the caller must cope.
  if (in_flight() >= jobs_max_ || rng_.Chance(1, 100)) return false;
  ++running_;
  context_->events.After(this, Latency(rng_, 5, 150), [this, job] {
    job.run(job.arg, static_cast<uint32_t>(rng_.Below(workers_)));
    --running_;
    ready_.push_back(job.token);
    context_->trace.Add("job done");
  });
  return true;
}

size_t SimDeviceQueue::Poll(absl::Span<uint64_t> done) {
  size_t count = 0;
  while (count < done.size() && !ready_.empty()) {
    done[count++] = ready_.front();
    ready_.pop_front();
  }
  return count;
}

}  // namespace crumb::sim
