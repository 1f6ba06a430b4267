// DeviceQueue whose jobs run at a later simulated time, on the one thread, in any order. Until a
// job runs nothing of its result is there; when it ran, its token is ready.
#ifndef CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_
#define CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_

#include <cstdint>
#include <deque>

#include "gpu/device/device_queue.h"
#include "tests/sim/sim_core.h"

namespace crumb::sim {

class SimDeviceQueue final : public DeviceQueue {
 public:
  SimDeviceQueue(SimContext* context, uint32_t workers, uint32_t jobs_max);
  // Jobs that have not run never will.
  ~SimDeviceQueue() override;

  bool Submit(const DeviceJob& job) override;
  size_t Poll(absl::Span<uint64_t> done) override;
  size_t in_flight() const override { return running_ + ready_.size(); }
  uint32_t worker_count() const override { return workers_; }
  int wake_fd() const override { return SimContext::kNoSleepFd; }
  bool has_ready() const { return !ready_.empty(); }

 private:
  SimContext* const context_;
  const uint32_t workers_;
  const uint32_t jobs_max_;
  Rng rng_;
  size_t running_ = 0;
  std::deque<uint64_t> ready_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_DEVICE_QUEUE_H_
