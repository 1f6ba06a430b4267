// resize: another size of the NVMe tier while it serves. The log does it (log_resize.cc); here it
// is asked and answered for. Pages that are given up come as reclaimed ones.
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/core/engine_disk.h"

namespace crumb::core {

void EngineDisk::StartResize(uint64_t bytes, std::function<void(absl::Status)> done) {
  if (log == nullptr) {
    return done(absl::FailedPreconditionError("there is no NVMe tier: nvme.bytes is 0"));
  }
  const uint64_t segment = log->segment_bytes();
  switch (log->Resize(bytes, MakeToken(TokenKind::kResize, 0, 0))) {
    case BlockResult::kOk:
      resized = std::move(done);
      return;
    case BlockResult::kBusy:
      return done(absl::ResourceExhaustedError("the tier is being resized: wait for that to end"));
    case BlockResult::kInvalid:
      return done(absl::InvalidArgumentError(
          absl::StrCat(bytes, " bytes hold ", bytes / segment, " segments of ", segment,
                       "; at least 4 are needed, and a device that large")));
    default:
      return done(
          absl::InternalError("the NVMe tier is off after device errors: try again when it is on"));
  }
}

void EngineDisk::OnResized(BlockResult result) {
  const std::function<void(absl::Status)> done = std::exchange(resized, nullptr);
  if (done == nullptr) return;
  if (result == BlockResult::kOk) return done(absl::OkStatus());
  done(absl::InternalError("the device refused a write: the tier keeps its size"));
}

}  // namespace crumb::core
