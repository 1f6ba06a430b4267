// Slots taken and given, values copied and checked. Bounded by the areas.
#include "client/src/bouncer.h"

#include <algorithm>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb::client {

absl::StatusOr<BounceSet> Bouncer::SetFor(uint64_t value_bytes) {
  const uint64_t slot_bytes = BounceArea::SlotBytes(value_bytes);
  if (areas_.empty()) {
    CRUMB_ASSIGN(std::unique_ptr<BounceArea> shared, BounceArea::Create(bytes_));
    areas_.push_back(std::move(shared));
  }
  if (slot_bytes <= areas_[0]->bytes()) {
    return BounceSet{.area = areas_[0].get(), .slot_bytes = slot_bytes};
  }
  for (size_t i = 1; i < areas_.size(); ++i) {
    if (areas_[i]->bytes() == slot_bytes) return BounceSet{areas_[i].get(), slot_bytes};
  }
  CRUMB_ASSIGN(std::unique_ptr<BounceArea> own, BounceArea::Create(slot_bytes));
  areas_.push_back(std::move(own));
  return BounceSet{.area = areas_.back().get(), .slot_bytes = slot_bytes};
}

BlockResult Bouncer::Take(const BounceSet& set, std::shared_ptr<const PlaneRequest> request) {
  const size_t count = request->blocks.size();
  if (count * set.slot_bytes > set.area->bytes()) return BlockResult::kInvalid;
  if (count * set.slot_bytes > set.area->bytes() - set.area->used_bytes()) {
    return BlockResult::kBusy;
  }
  if (free_trips_.empty()) {
    free_trips_.push_back(static_cast<uint32_t>(trips_.size()));
    trips_.emplace_back();
  }
  Trip& trip = trips_[free_trips_.back()];
  trip.set = set;
  trip.abandoned = false;
  trip.slots.clear();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t slot = set.area->Take(set.slot_bytes);
    if (slot == BounceArea::kNone) {  // there is room, but in pieces
      for (const uint32_t taken : trip.slots) set.area->Give(taken, set.slot_bytes);
      return BlockResult::kBusy;
    }
    trip.slots.push_back(slot);
  }
  for (size_t i = 0; i < count && request->type == WireType::kPut; ++i) {
    const uint64_t bytes = request->raw_bytes[i];
    const MutableBytes to = set.area->At(trip.slots[i], set.slot_bytes).subspan(0, bytes);
    request->memory->Gather(request->PlaceOf(i, bytes), to, &scratch_);
  }
  CRUMB_CHECK(by_id_.emplace(request->id, free_trips_.back()).second);
  trip.request = std::move(request);
  free_trips_.pop_back();
  return BlockResult::kOk;
}

absl::Span<const uint32_t> Bouncer::SlotsOf(uint64_t id) const {
  return trips_[by_id_.at(id)].slots;
}

bool Bouncer::Abandon(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  trips_[found->second].abandoned = true;
  return true;
}

bool Bouncer::Give(uint64_t id, PlaneReply* reply) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  Trip& trip = trips_[found->second];
  if (reply != nullptr && !trip.abandoned && trip.request->type == WireType::kGet) {
    Deliver(trip, reply);
  }
  for (const uint32_t slot : trip.slots) trip.set.area->Give(slot, trip.set.slot_bytes);
  trip.request.reset();
  free_trips_.push_back(found->second);
  by_id_.erase(found);
  return true;
}

void Bouncer::Deliver(const Trip& trip, PlaneReply* reply) {
  const PlaneRequest& request = *trip.request;
  reply->verified = true;
  const size_t count = std::min(reply->blocks.size(), request.blocks.size());
  for (size_t i = 0; i < count; ++i) {
    WireBlockReply& block = reply->blocks[i];
    if (block.result != BlockResult::kOk) continue;
    const uint64_t bytes = block.value_bytes;
    if (bytes > trip.set.slot_bytes || !request.MayHold(i, bytes)) {
      block.result = BlockResult::kCorrupt;
      continue;
    }
    const ValuePlace place = request.PlaceOf(i, bytes);
    const Bytes value = trip.set.area->At(trip.slots[i], trip.set.slot_bytes).subspan(0, bytes);
    if (!request.verify) {
      request.memory->Scatter(place, value, &scratch_);
    } else if (request.memory->ScatterAndHash(place, value, &scratch_) != block.checksum) {
      block.result = BlockResult::kCorrupt;
    }
  }
}

uint64_t Bouncer::used_bytes() const {
  uint64_t sum = 0;
  for (const auto& area : areas_) sum += area->used_bytes();
  return sum;
}

}  // namespace crumb::client
