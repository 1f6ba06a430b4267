// CodecPlane: a plane in front of another one. Region sets of GPU memory whose codec runs in the
// worker are its own (worker_codec.h); everything else passes through. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_CODEC_PLANE_H_
#define CRUMB_CLIENT_SRC_CODEC_PLANE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cachesvc/base/clock.h"
#include "client/src/data_plane.h"
#include "client/src/layout_codecs.h"
#include "client/src/worker_codec.h"

namespace crumb::client {

struct CodecPlaneParts {
  std::unique_ptr<Plane> inner;
  GpuSide* gpu = nullptr;                         // outlives it
  const Clock* clock = nullptr;                   // outlives it
  CodecPlace daemon_place = CodecPlace::kDaemon;  // what kAuto is
  uint64_t staging_bytes = 0;
  // By the daemon's handle.
  std::function<absl::StatusOr<LayoutCodecs>(uint32_t layout)> get_codecs;
};

class CodecPlane final : public Plane {
 public:
  explicit CodecPlane(CodecPlaneParts parts) : parts_(std::move(parts)) {}

  BlockResult Submit(std::shared_ptr<const PlaneRequest> request) override;
  bool Cancel(uint64_t id, CancelKind kind) override;
  void Poll(ReplyList* replies) override;
  bool Arm() override { return parts_.inner->Arm(); }
  int wake_fd() const override { return parts_.inner->wake_fd(); }
  uint64_t NextPollUs(uint64_t now_us) const override;
  // Where the codec cannot run in the worker, it runs in the daemon, and PlacedAt says why.
  absl::Status Lend(const LendOrder& order) override;
  void Unlend(uint32_t region_set) override;
  CodecPlaced PlacedAt(uint32_t region_set) const override;
  bool lost() const override { return parts_.inner->lost(); }

 private:
  absl::Status LendHere(const LendOrder& order);

  CodecPlaneParts parts_;
  std::map<uint32_t, std::string> notes_;  // by region set
  ReplyList inner_replies_;                // reused
  std::unique_ptr<WorkerCodec> worker_;    // made with the first set; goes before the inner plane
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_CODEC_PLANE_H_
