// How a session's staging, sets and trips come and go; trip_steps.cc has what a trip does.
#include "client/src/worker_codec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"

namespace crumb::client {
namespace {

// Region sets of the library's own, out of the way of the session's.
constexpr uint32_t kStagedSetsFrom = 0x40000000;
// While the GPU works nobody wakes the worker: it looks again, rarely where that takes long.
constexpr uint64_t kPollUsMin = 20;
constexpr uint64_t kPollUsMax = 500;
constexpr uint64_t kPollShare = 8;  // of the time since there was news

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerCodec>> WorkerCodec::Create(WorkerCodecParts parts) {
  std::unique_ptr<WorkerCodec> codec(new WorkerCodec(std::move(parts)));
  CRUMB_ASSIGN(codec->area_, BounceArea::Create(codec->parts_.staging_bytes));
  CRUMB_TRY(codec->shared_.Add(codec->area_->range()));
  const SharedRange& range = codec->area_->range();
  absl::StatusOr<std::shared_ptr<void>> registered = codec->parts_.gpu->RegisterHost(
      {static_cast<uint8_t*>(range.address), static_cast<size_t>(range.bytes)});
  if (!registered.ok()) {
    return absl::Status(
        registered.status().code(),
        absl::StrCat("staging_bytes: ", std::string(registered.status().message())));
  }
  codec->registered_ = *std::move(registered);
  CRUMB_ASSIGN(codec->link_,
               codec->parts_.gpu->MakeLink([gate = codec->parts_.gate](StreamHandle stream) {
                 return gate->Follow(stream);
               }));
  return codec;
}

WorkerCodec::~WorkerCodec() {
  parts_.gpu->Run([this] {
    link_.reset();
    trips_.clear();
    sets_.clear();
    registered_.reset();
  });
}

absl::StatusOr<StagedSlots> WorkerCodec::SlotsFor(const LendOrder& order, uint64_t value_bytes) {
  const uint64_t slot_bytes = BounceArea::SlotBytes(value_bytes);
  if (slot_bytes > area_->bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("staging_bytes: ", area_->bytes(),
                                                   " bytes hold no page of ", slot_bytes,
                                                   ": raise Options::staging_bytes"));
  }
  const auto known = slots_.find({order.layout_handle, slot_bytes});
  if (known != slots_.end()) return known->second;
  StagedSlots staged{.region_set = kStagedSetsFrom + static_cast<uint32_t>(slots_.size()),
                     .slot_bytes = slot_bytes,
                     .memory = nullptr};
  const uint64_t whole = area_->bytes() / slot_bytes * slot_bytes;
  const LentMemory::Pages pages{
      .base = area_->range().address, .bytes = whole, .slot_bytes = slot_bytes, .call = "staging"};
  CRUMB_ASSIGN(staged.memory, LentMemory::Make(pages, *order.layout));
  CRUMB_TRY(parts_.inner->Lend({.region_set = staged.region_set,
                                .layout_handle = order.layout_handle,
                                .value_bytes_max = slot_bytes,
                                .memory = staged.memory.get(),
                                .shared = &shared_}));
  slots_[{order.layout_handle, slot_bytes}] = staged;
  return staged;
}

absl::Status WorkerCodec::Lend(const LendOrder& order, const LayoutCodecs& codecs) {
  CRUMB_CHECK(order.layout != nullptr);
  Unlend(order.region_set);
  absl::StatusOr<std::shared_ptr<WorkerSet>> made = absl::UnknownError("not made");
  absl::Status placed;
  parts_.gpu->Run([&] {
    made = MakeWorkerSet(*order.layout, codecs, parts_.gpu.get());
    if (made.ok()) placed = AddTables(*order.memory, *order.layout, link_.get(), made->get());
  });
  CRUMB_TRY(made.status());
  CRUMB_TRY(placed);
  WorkerSet& set = **made;
  const auto slots = [&]() -> absl::Status {
    CRUMB_ASSIGN(set.packed, SlotsFor(order, kPageHeaderBytes + set.payload_bytes_most));
    CRUMB_ASSIGN(set.raw, SlotsFor(order, set.raw_bytes_most));
    return absl::OkStatus();
  };
  if (const absl::Status status = slots(); !status.ok()) {
    DropTables(link_.get(), &set);
    return status;
  }
  sets_[order.region_set] = *std::move(made);
  return absl::OkStatus();
}

void WorkerCodec::Unlend(uint32_t region_set) {
  const auto found = sets_.find(region_set);
  if (found == sets_.end()) return;
  DropTables(link_.get(), found->second.get());  // trips that go on have no job for it any more
  sets_.erase(found);
}

BlockResult WorkerCodec::Submit(std::shared_ptr<const PlaneRequest> request) {
  // Those who wait for room come first.
  if (hungry_ != 0) return BlockResult::kBusy;
  const auto set = sets_.find(request->region_set);
  CRUMB_CHECK(set != sets_.end());
  if (free_trips_.empty()) {
    free_trips_.push_back(static_cast<uint32_t>(trips_.size()));
    trips_.push_back(std::make_unique<Trip>());
    trips_.back()->index = free_trips_.back();
  }
  Trip* trip = trips_[free_trips_.back()].get();
  const uint32_t index = trip->index;
  trip->Reset();
  trip->set = set->second;
  trip->request = std::move(request);
  const PlaneRequest& asked = *trip->request;
  trip->blocks.resize(asked.blocks.size());
  for (uint32_t i = 0; i < asked.blocks.size(); ++i) {
    const WorkerPart& part = trip->set->parts[asked.blocks[i].part];
    if (part.table == UINT32_MAX) return BlockResult::kInvalid;
    const bool packed = !trip->put() || trip->set->Packs(asked.blocks[i]);
    (packed ? trip->packed : trip->raw).push_back(i);
  }
  const uint64_t now_us = parts_.clock->now_us();
  trip->until_us = now_us + uint64_t{std::max(asked.deadline_ms, asked.wait_ms)} * 1000;
  trip->step = Trip::Step::kRoom;
  if (!StartPiece(trip)) {
    trip->Reset();
    return BlockResult::kBusy;
  }
  free_trips_.pop_back();
  CRUMB_CHECK(by_id_.emplace(asked.id, index).second);
  if (link_->in_flight() == 0) gpu_since_us_ = now_us;
  parts_.gpu->Run([&] {
    Advance(trip);
    link_->Flush();
  });
  return BlockResult::kOk;
}

std::optional<bool> WorkerCodec::Cancel(uint64_t id, CancelKind kind) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  Trip* trip = trips_[found->second].get();
  trip->ended = true;
  if (trip->inner_id != 0 && parts_.inner->Cancel(trip->inner_id, kind)) {
    // It never touches the slots any more, and may never answer.
    by_inner_id_.erase(trip->inner_id);
    trip->inner_id = 0;
    trip->step = Trip::Step::kRoom;
  }
  return kind == CancelKind::kAbandon && trip->running == 0;
}

bool WorkerCodec::TakeReply(const PlaneReply& reply) {
  const auto found = by_inner_id_.find(reply.id);
  if (found == by_inner_id_.end()) return false;
  Trip* trip = trips_[found->second].get();
  by_inner_id_.erase(found);
  trip->inner_id = 0;
  OnSent(trip, reply);
  return true;
}

void WorkerCodec::PollGpu() {
  std::array<GpuDone, 64> done;
  for (size_t count = done.size(); count == done.size();) {
    count = link_->Poll(absl::MakeSpan(done));
    if (count != 0) gpu_since_us_ = parts_.clock->now_us();
    for (size_t i = 0; i < count; ++i) {
      Trip* trip = trips_[done[i].token >> 32].get();
      const auto index = static_cast<uint32_t>(done[i].token);
      CRUMB_CHECK(trip->running > 0 && index < trip->blocks.size());
      --trip->running;
      TripBlock& block = trip->blocks[index];
      const EncodeReport& report = done[i].report;
      block.packed_ok = done[i].ok && report.result == BlockResult::kOk && report.fits;
      if (done[i].ok) continue;
      block.note = absl::StrCat("the GPU did not do it", link_->health().ok() ? "" : ": ",
                                std::string(link_->health().message()));
      Settle(trip, index, BlockResult::kUnavailable);
    }
  }
}

void WorkerCodec::Turn(ReplyList* replies) {
  if (!by_id_.empty()) {
    parts_.gpu->Run([this] {
      PollGpu();
      for (const std::unique_ptr<Trip>& trip : trips_) Advance(trip.get());
      link_->Flush();
    });
  }
  for (PlaneReply& done : done_) {
    PlaneReply& out = replies->Next(done.id);
    out.verified = done.verified;
    out.unheard = done.unheard;
    out.blocks.swap(done.blocks);
    out.notes.swap(done.notes);
  }
  done_.clear();
}

uint64_t WorkerCodec::NextPollUs(uint64_t now_us) const {
  if (!done_.empty()) return now_us;
  const bool busy = std::any_of(trips_.begin(), trips_.end(), [](const auto& trip) {
    return trip->step != Trip::Step::kFree && trip->step != Trip::Step::kWire;
  });
  if (!busy) return UINT64_MAX;
  const uint64_t since_us = now_us - std::min(now_us, gpu_since_us_);
  return now_us + std::clamp(since_us / kPollShare, kPollUsMin, kPollUsMax);
}

}  // namespace crumb::client
