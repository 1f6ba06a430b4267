// StreamQueue: copies and kernels in the order in which they were submitted, as a GPU's stream does
// them. DeviceQueue beside it runs CPU jobs on threads, in any order: a job of that kind has no
// place on a stream, and a kernel none on a thread, so these are two seams. cuda_queue drives a
// stream, host_stream_queue does the work at once, in memory. One thread (the shard) owns a queue.
#ifndef CRUMB_GPU_DEVICE_STREAM_QUEUE_H_
#define CRUMB_GPU_DEVICE_STREAM_QUEUE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "cachesvc/base/status.h"

struct CUstream_st;  // CUDA's own name

namespace crumb {

using StreamHandle = CUstream_st*;  // a cudaStream_t; null on a queue of the host

// Host memory must be pinned or registered. Neither range may change hands before the token is
// back.
struct StreamCopy {
  void* dst = nullptr;
  const void* src = nullptr;
  uint64_t bytes = 0;
};

// Puts kernels on the stream and waits for nothing. An error means that this work is not whole; the
// queue goes on unless the device is lost.
using StreamLaunch = absl::Status (*)(void* arg, StreamHandle stream) noexcept;

struct StreamWork {
  absl::Span<const StreamCopy> copies = {};  // first; unordered among themselves, so disjoint
  StreamLaunch launch = nullptr;             // then this, if there is one; called once, by Submit
  void* arg = nullptr;
  uint64_t token = 0;  // comes back from Poll
};

struct StreamDone {
  uint64_t token = 0;
  // False: a copy or the launch was refused, or the device was lost; what it wrote means nothing.
  bool ok = false;
};

class StreamQueue {
 public:
  virtual ~StreamQueue() = default;  // waits for what was submitted
  // False: full (the caller answers busy), or health() is not OK. Everything accepted comes back
  // from Poll exactly once. The span is not needed after the call.
  virtual bool Submit(const StreamWork& work) = 0;
  // What is done, in the order of submission. Costs a load while there is nothing new.
  virtual size_t Poll(absl::Span<StreamDone> done) = 0;
  virtual size_t in_flight() const = 0;  // submitted and not yet polled
  // Not OK once the device failed: names it and the remedy. Never becomes OK again.
  virtual const absl::Status& health() const = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_STREAM_QUEUE_H_
