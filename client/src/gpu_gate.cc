// The order of streams under one event.
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

absl::StatusOr<std::shared_ptr<GpuGate>> GpuGate::Open(GpuSide* side, const GpuUuid& device) {
  CRUMB_ASSIGN(std::unique_ptr<GpuMark> mark, side->MakeMark(device));
  return std::shared_ptr<GpuGate>(new GpuGate(device, std::move(mark)));
}

absl::Status GpuGate::Pass(void* stream) {
  // WHY: an event knows its last record alone. The daemon waits for it when it comes to a request,
  // and by then a later request may have recorded it anew, on another stream: work that the first
  // request relied on would be waited for by nobody. So a stream that takes over first waits for
  // the record before, and every record stands for all that came before it.
  if (recorded_ && stream != last_stream_) CRUMB_TRY(Named(mark_->Wait(stream)));
  CRUMB_TRY(Named(mark_->Record(stream)));
  recorded_ = true;
  last_stream_ = stream;
  return absl::OkStatus();
}

absl::Status MovesNoGpuMemory(absl::string_view plane) {
  return absl::InvalidArgumentError(absl::StrCat(
      "GPU memory: the data plane ", plane,
      " moves none: connect over the unix socket of the daemon on this host (Options::server "
      "\"unix:PATH\" or loopback, data_plane kAuto or kShm), or lend host memory"));
}

}  // namespace crumb::client
