// GpuGate: what keeps the daemon's kernels behind the worker's. A word that the worker's GPU counts
// up behind what is on a request's stream; the request names the count, and the daemon looks at the
// word before it reads or writes lent GPU memory. One GPU and one gate per Client; a new session
// gets the same. Thread: the Client's (the helper that connects again reads what never changes).
#ifndef CRUMB_CLIENT_SRC_GPU_GATE_H_
#define CRUMB_CLIENT_SRC_GPU_GATE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/src/gpu_side.h"

namespace crumb::client {

class GpuGate {
 public:
  static absl::StatusOr<std::shared_ptr<GpuGate>> Open(GpuSide* side, const GpuUuid& device);

  const GpuUuid& device() const { return device_; }
  int word_fd() const { return mark_->word_fd(); }
  // Before a request is sent: what it names, so that the daemon starts behind what is on `stream`
  // now; 0: nothing is. Waits for nothing. INVALID_ARGUMENT says whose stream it must be.
  absl::StatusOr<uint64_t> Pass(void* stream);
  // Puts a wait for the last Pass on a stream of this process.
  absl::Status Follow(void* stream) const {
    return last_ == 0 ? absl::OkStatus() : mark_->Wait(stream);
  }

 private:
  GpuGate(const GpuUuid& device, std::unique_ptr<GpuMark> mark)
      : device_(device), mark_(std::move(mark)) {}

  const GpuUuid device_;
  const std::unique_ptr<GpuMark> mark_;
  uint64_t last_ = 0;  // recorded
  void* last_stream_ = nullptr;
};

// The refusal of a data plane that moves no GPU memory, with the remedy.
absl::Status MovesNoGpuMemory(absl::string_view plane);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GPU_GATE_H_
