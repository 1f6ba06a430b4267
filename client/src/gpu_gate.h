// GpuGate: what keeps the daemon's kernels behind the worker's. One event, which the daemon's
// stream waits for before it reads or writes lent GPU memory, recorded before each request. One GPU
// and one gate per Client; a new session gets the same. Thread: the Client's (the helper that
// connects again reads what never changes).
#ifndef CRUMB_CLIENT_SRC_GPU_GATE_H_
#define CRUMB_CLIENT_SRC_GPU_GATE_H_

#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/src/gpu_side.h"

namespace crumb::client {

class GpuGate {
 public:
  static absl::StatusOr<std::shared_ptr<GpuGate>> Open(GpuSide* side, const GpuUuid& device);

  const GpuUuid& device() const { return device_; }
  const GpuHandle& event() const { return mark_->handle(); }
  // Before a request is sent: the daemon starts behind what is on `stream` now, and behind what
  // earlier requests named. Waits for nothing. INVALID_ARGUMENT says whose stream it must be.
  absl::Status Pass(void* stream);

 private:
  GpuGate(const GpuUuid& device, std::unique_ptr<GpuMark> mark)
      : device_(device), mark_(std::move(mark)) {}

  const GpuUuid device_;
  const std::unique_ptr<GpuMark> mark_;
  bool recorded_ = false;
  void* last_stream_ = nullptr;
};

// The refusal of a data plane that moves no GPU memory, with the remedy.
absl::Status MovesNoGpuMemory(absl::string_view plane);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GPU_GATE_H_
