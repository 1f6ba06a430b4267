// DeviceQueue whose jobs run at a later simulated time, on the one thread, in any order. Until a
// job runs nothing of its result is there; when it ran, its token is ready.
#ifndef CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_
#define CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_

#include <cstdint>
#include <deque>

#include "gpu/device/device_queue.h"
#include "tests/sim/sim_core.h"

namespace crumb::sim {

struct SimQueueOptions {
  uint32_t workers = 3;
  uint32_t jobs_max = 32;
  uint32_t slow_jobs_per_1k = 0;  // that take up to a second: a worker that was not scheduled
};

class SimDeviceQueue final : public DeviceQueue {
 public:
  SimDeviceQueue(SimContext* context, const SimQueueOptions& options);
  // Jobs that have not run never will.
  ~SimDeviceQueue() override;

  bool Submit(const DeviceJob& job) override;
  size_t Poll(absl::Span<uint64_t> done) override;
  size_t in_flight() const override { return running_ + ready_.size(); }
  uint32_t worker_count() const override { return options_.workers; }
  void StopFaults() { options_.slow_jobs_per_1k = 0; }
  int wake_fd() const override { return SimContext::kNoSleepFd; }
  bool has_ready() const { return !ready_.empty(); }

 private:
  SimContext* const context_;
  SimQueueOptions options_;
  Rng rng_;
  size_t running_ = 0;
  std::deque<uint64_t> ready_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_
