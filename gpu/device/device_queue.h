// DeviceQueue: work on page memory that the shard thread must not do itself. host_queue runs jobs
// on a worker pool; a CUDA queue will launch them on a stream; the simulator runs them inline at a
// later simulated time. One thread (the shard) owns a queue.
#ifndef CRUMB_GPU_DEVICE_DEVICE_QUEUE_H_
#define CRUMB_GPU_DEVICE_DEVICE_QUEUE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace crumb {

struct DeviceJob {
  // Runs once, off the shard thread. `worker` < worker_count() picks per-thread scratch.
  void (*run)(void* arg, uint32_t worker) noexcept = nullptr;
  void* arg = nullptr;
  uint64_t token = 0;  // comes back from Poll
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // False when the queue is full: the caller answers busy.
  virtual bool Submit(const DeviceJob& job) = 0;
  virtual size_t Poll(absl::Span<uint64_t> done) = 0;
  virtual size_t in_flight() const = 0;
  virtual uint32_t worker_count() const = 0;
  virtual int wake_fd() const = 0;  // -1: must be polled
  // Called before the owner sleeps on wake_fd; false: Poll again instead. Queues whose descriptor
  // needs no preparation leave it as it is.
  virtual bool Arm() { return true; }
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_DEVICE_QUEUE_H_
