// HostQueue: the device queue of a machine without a GPU: jobs run on a worker pool. Never touches
// page memory itself. One thread (the shard) owns it.
#ifndef CRUMB_GPU_DEVICE_HOST_QUEUE_H_
#define CRUMB_GPU_DEVICE_HOST_QUEUE_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/worker_pool.h"
#include "gpu/device/device_queue.h"

namespace crumb {

struct HostQueueOptions {
  uint32_t threads = 1;
  uint32_t jobs_max = 1024;  // submitted and not yet polled
};

class HostQueue final : public DeviceQueue {
 public:
  // REQUIRES: threads >= 1, jobs_max >= 1.
  explicit HostQueue(const HostQueueOptions& options);

  bool Submit(const DeviceJob& job) override;
  size_t Poll(absl::Span<uint64_t> done) override;
  size_t in_flight() const override;
  uint32_t worker_count() const override;
  int wake_fd() const override;
  bool Arm() override;

 private:
  WorkerPool pool_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_HOST_QUEUE_H_
