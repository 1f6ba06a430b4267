// The schedule of simulated device jobs.
#include "tests/sim/sim_device_queue.h"

namespace crumb::sim {

SimDeviceQueue::SimDeviceQueue(SimContext* context, const SimQueueOptions& options)
    : context_(context), options_(options), rng_(context->rng.Next()) {}

SimDeviceQueue::~SimDeviceQueue() { context_->events.CancelAll(this); }

bool SimDeviceQueue::Submit(const DeviceJob& job) {
  // Full now and then, long before the bound: the caller must cope.
  if (in_flight() >= options_.jobs_max || rng_.Chance(1, 100)) return false;
  ++running_;
  uint64_t delay = Latency(rng_, 5, 150);
  if (rng_.Chance(options_.slow_jobs_per_1k, 1000)) delay += rng_.Below(1'000'000);
  context_->events.After(this, delay, [this, job] {
    job.run(job.arg, static_cast<uint32_t>(rng_.Below(options_.workers)));
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
