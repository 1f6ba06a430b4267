// Whose region set that is.
#include "client/src/codec_plane.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb::client {

BlockResult CodecPlane::Submit(std::shared_ptr<const PlaneRequest> request) {
  const bool here =
      worker_ != nullptr && request->memory != nullptr && worker_->Has(request->region_set);
  if (!here) return parts_.inner->Submit(std::move(request));
  if (parts_.inner->lost()) return BlockResult::kUnavailable;
  return worker_->Submit(std::move(request));
}

bool CodecPlane::Cancel(uint64_t id, CancelKind kind) {
  if (worker_ != nullptr) {
    if (const std::optional<bool> own = worker_->Cancel(id, kind)) return *own;
  }
  return parts_.inner->Cancel(id, kind);
}

void CodecPlane::Poll(ReplyList* replies) {
  if (worker_ == nullptr) return parts_.inner->Poll(replies);
  inner_replies_.Clear();
  parts_.inner->Poll(&inner_replies_);
  for (size_t i = 0; i < inner_replies_.size(); ++i) {
    PlaneReply& reply = inner_replies_.at(i);
    if (worker_->TakeReply(reply)) continue;
    std::swap(replies->Next(reply.id), reply);
  }
  if (!parts_.inner->lost()) worker_->Turn(replies);
}

uint64_t CodecPlane::NextPollUs(uint64_t now_us) const {
  return worker_ == nullptr ? UINT64_MAX : worker_->NextPollUs(now_us);
}

absl::Status CodecPlane::LendHere(const LendOrder& order) {
  CRUMB_ASSIGN(const LayoutCodecs codecs, parts_.get_codecs(order.layout_handle));
  if (worker_ == nullptr) {
    WorkerCodecParts parts;
    CRUMB_ASSIGN(parts.gpu, parts_.gpu->OpenWorkerGpu(order.gate->device()));
    parts.gate = order.gate;
    parts.inner = parts_.inner.get();
    parts.clock = parts_.clock;
    parts.staging_bytes = parts_.staging_bytes;
    CRUMB_ASSIGN(worker_, WorkerCodec::Create(std::move(parts)));
  }
  return worker_->Lend(order, codecs);
}

absl::Status CodecPlane::Lend(const LendOrder& order) {
  notes_.erase(order.region_set);
  CodecPlace wanted = order.place == CodecPlace::kAuto ? parts_.daemon_place : order.place;
  if (!order.memory->mappable().ok()) wanted = CodecPlace::kWorker;  // nobody else can
  if (!order.memory->gpu() || wanted == CodecPlace::kDaemon) return parts_.inner->Lend(order);
  const absl::Status here = LendHere(order);
  if (here.ok() || absl::IsUnavailable(here)) return here;
  const std::string why = absl::StrCat("not in the worker: ", std::string(here.message()));
  const absl::Status there = parts_.inner->Lend(order);
  if (!there.ok()) {
    return absl::Status(there.code(), absl::StrCat(std::string(there.message()), "; ", why));
  }
  notes_[order.region_set] = why;
  return absl::OkStatus();
}

void CodecPlane::Unlend(uint32_t region_set) {
  notes_.erase(region_set);
  if (worker_ != nullptr && worker_->Has(region_set)) return worker_->Unlend(region_set);
  parts_.inner->Unlend(region_set);
}

CodecPlaced CodecPlane::PlacedAt(uint32_t region_set) const {
  if (worker_ != nullptr && worker_->Has(region_set))
    return {.place = CodecPlace::kWorker, .note = ""};
  const auto note = notes_.find(region_set);
  return {.place = CodecPlace::kDaemon, .note = note == notes_.end() ? "" : note->second};
}

}  // namespace crumb::client
