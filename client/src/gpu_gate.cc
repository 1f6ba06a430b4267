// The order of streams under one word.
#include "client/src/gpu_gate.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb::client {
namespace {

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(), absl::StrCat("RequestOptions::stream must be a stream of the GPU whose memory "
                                  "is lent: ",
                                  status.message()));
}

}  // namespace

absl::StatusOr<GpuUuid> GpuSide::DeviceOf(const void*) {
  return absl::UnimplementedError("this client library was built without CUDA");
}

absl::StatusOr<std::unique_ptr<WorkerGpu>> GpuSide::OpenWorkerGpu(const GpuUuid&) {
  return absl::UnimplementedError("this client library was built without CUDA");
}

absl::StatusOr<std::shared_ptr<GpuGate>> GpuGate::Open(GpuSide* side, const GpuUuid& device) {
  CRUMB_ASSIGN(std::unique_ptr<GpuMark> mark, side->MakeMark(device));
  return std::shared_ptr<GpuGate>(new GpuGate(device, std::move(mark)));
}

absl::StatusOr<uint64_t> GpuGate::Pass(void* stream) {
  // WHY: a write is work of this process's context, which the GPU has to switch to: 150 us that a
  // stream without work need not cost.
  const absl::StatusOr<bool> idle = mark_->Idle(stream);
  if (!idle.ok()) return Named(idle.status());
  if (*idle) return 0;
  // WHY: streams end in any order, and a word that is counted up by two would pass one for the
  // other. So a stream that takes over first waits for the record before.
  if (last_ != 0 && stream != last_stream_) CRUMB_TRY(Named(mark_->Wait(stream)));
  CRUMB_TRY(Named(mark_->Record(stream, last_ + 1)));
  last_stream_ = stream;
  return ++last_;
}

absl::Status MovesNoGpuMemory(absl::string_view plane) {
  return absl::InvalidArgumentError(absl::StrCat(
      "GPU memory: the data plane ", plane,
      " moves none: connect over the unix socket of the daemon on this host (Options::server "
      "\"unix:PATH\" or loopback, data_plane kAuto or kShm), or lend host memory"));
}

}  // namespace crumb::client
