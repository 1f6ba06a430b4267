// Client pins: a page stays in memory until the pin's time is over, the client unpins, or its
// session closes. One pin per session and page; pinning again moves its end. And all timers.
#include <algorithm>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {
constexpr int kUnpinsPerTurn = 256;
}  // namespace

// A block is pinned with all its parts or not at all.
BlockResult EngineImpl::PinBlock(Session& session, const Binding& binding, const Digest& digest,
                                 uint64_t ttl_us) {
  if (digest == Digest{}) return BlockResult::kInvalid;
  std::array<EntryId, kPartsMax> ids{};
  const uint32_t parts = binding.part_count();
  for (uint32_t part = 0; part < parts; ++part) {
    if (FindLive(binding.Key(digest, part), &ids[part]) != Live::kYes) return BlockResult::kMiss;
  }
  if (ttl_us != 0 && pins.free() < parts) return BlockResult::kBusy;
  for (uint32_t part = 0; part < parts; ++part) PinOne(session, ids[part], ttl_us);
  return BlockResult::kOk;
}

BlockResult EngineImpl::PinOne(Session& session, EntryId id, uint64_t ttl_us) {
  const std::pair<uint64_t, EntryId> name{session.id.value, id};
  auto it = pin_ids.find(name);
  if (it != pin_ids.end() && pins[it->second].entry_generation != index.at(id).generation) {
    Unpin(it->second);  // of a page that is gone
    it = pin_ids.end();
  }
  if (ttl_us == 0) {
    if (it != pin_ids.end()) Unpin(it->second);
    return BlockResult::kOk;
  }
  const uint64_t ends_us = now() + std::min(ttl_us, options.limits.pin_ttl_us_max);
  if (it != pin_ids.end()) {
    pin_timers.Set(it->second, ends_us);
    return BlockResult::kOk;
  }
  const uint32_t pin = pins.Take();
  if (pin == Slab<PinRecord>::kNone) return BlockResult::kBusy;
  Entry& entry = index.at(id);
  pins[pin].session = session.id;
  pins[pin].entry = id;
  pins[pin].entry_generation = entry.generation;
  session.pins.PushBack(pins, pin);
  pin_ids.emplace(name, pin);
  pin_timers.Set(pin, ends_us);
  if (++client_pins[id] == 1 && entry.resident()) PinSlot(SlotOf(entry));
  entry.pinned = true;
  Rehold(id);
  return BlockResult::kOk;
}

void EngineImpl::Unpin(uint32_t pin_id) {
  PinRecord& pin = pins[pin_id];
  pin_timers.Remove(pin_id);
  pin_ids.erase({pin.session.value, pin.entry});
  pin.list->Remove(pins, pin_id);
  if (index.Alive(pin.entry, pin.entry_generation)) {
    Entry& entry = index.at(pin.entry);
    const auto count = client_pins.find(pin.entry);
    if (--count->second == 0) {
      client_pins.erase(count);
      entry.pinned = false;
      if (entry.resident()) UnpinSlot(SlotOf(entry));
      Rehold(pin.entry);
    }
  }
  pins.Give(pin_id);
}

// What sessions that are gone have pinned is let go a little per turn, however much it is.
int EngineImpl::RunClosing() {
  int left = kUnpinsPerTurn;
  while (!closing.empty() && left > 0) {
    Session& session = *closing.back();
    while (!session.pins.empty() && left-- > 0) Unpin(session.pins.front());
    if (session.pins.empty()) closing.pop_back();
  }
  return kUnpinsPerTurn - std::max(left, 0);
}

int EngineImpl::RunTimers() {
  int fired = 0;
  const uint64_t time_us = now();
  uint32_t id = 0;
  while (fired < kUnpinsPerTurn && pin_timers.PopDue(time_us, &id)) {
    Unpin(id);
    ++fired;
  }
  while (request_timers.PopDue(time_us, &id)) {
    ++fired;
    if (requests[id].overdue) {
      DropStalledPeer(id);
      continue;
    }
    ++counts.deadline_exceeded;
    requests[id].overdue = true;
    const uint32_t generation = requests[id].generation;
    CancelRequest(id, BlockResult::kTimeout);
    if (!requests.Alive(id, generation) || requests[id].blocks_left == 0) continue;
    request_timers.Set(id, time_us + options.limits.transfer_grace_us);
  }
  return fired;
}

}  // namespace crumb::core
