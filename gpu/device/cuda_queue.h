// CudaQueue: the stream queue of one GPU. Completion is a 64-bit ticket in pinned memory, written
// by the GPU behind the work, so polling is a load. Nothing allocates or waits after Create, except
// the destructor. One thread owns a queue; it may be another one than the one that made it.
#ifndef CRUMB_GPU_DEVICE_CUDA_QUEUE_H_
#define CRUMB_GPU_DEVICE_CUDA_QUEUE_H_

#include <cstdint>
#include <memory>

#include "gpu/device/stream_queue.h"

namespace crumb {

// Among the streams of this process; GPUs schedule waiting blocks of a higher one first.
enum class StreamPriority : uint8_t { kLow = 0, kNormal = 1, kHigh = 2 };

struct CudaQueueOptions {
  int device = 0;
  StreamPriority priority = StreamPriority::kNormal;
  uint32_t work_max = 256;     // submitted and not yet polled
  uint32_t copies_call = 256;  // copies of one call to the driver; more take several calls
  // What a driver lacks is left out anyway. Off by choice: to compare, and to test the other way.
  bool batched_copies = true;  // else a call for each copy
  bool value_tickets = true;   // else a ticket is a copy of eight bytes
};

class CudaQueue final : public StreamQueue {
 public:
  // REQUIRES: work_max >= 1, copies_call >= 1. Tries copies and tickets once, so what works here
  // works later. Leaves the device current on this thread.
  static absl::StatusOr<std::unique_ptr<CudaQueue>> Create(const CudaQueueOptions& options);
  ~CudaQueue() override;

  bool Submit(const StreamWork& work) override;
  size_t Poll(absl::Span<StreamDone> done) override;
  size_t in_flight() const override;
  const absl::Status& health() const override;

  bool batches_copies() const;  // by cuMemcpyBatchAsync
  bool writes_values() const;   // by cuStreamWriteValue64
  StreamHandle stream() const;  // for events around the work; never wait for it on the shard thread

 private:
  struct Impl;
  explicit CudaQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_QUEUE_H_
