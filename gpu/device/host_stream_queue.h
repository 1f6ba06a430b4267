// HostStreamQueue: the stream of a machine without a GPU. Submit does the work itself; Poll only
// hands it back. One thread owns it.
#ifndef CRUMB_GPU_DEVICE_HOST_STREAM_QUEUE_H_
#define CRUMB_GPU_DEVICE_HOST_STREAM_QUEUE_H_

#include <cstdint>
#include <vector>

#include "gpu/device/stream_queue.h"

namespace crumb {

class HostStreamQueue final : public StreamQueue {
 public:
  // At most `work_max` >= 1 submitted and not yet polled.
  explicit HostStreamQueue(uint32_t work_max);

  bool Submit(const StreamWork& work) override;
  size_t Poll(absl::Span<StreamDone> done) override;
  size_t in_flight() const override { return static_cast<size_t>(submitted_ - polled_); }
  const absl::Status& health() const override { return health_; }

 private:
  std::vector<StreamDone> ring_;
  uint64_t submitted_ = 0;
  uint64_t polled_ = 0;
  const absl::Status health_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_HOST_STREAM_QUEUE_H_
