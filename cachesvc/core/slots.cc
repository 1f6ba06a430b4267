// Room for pages: slots of the main area by evicting, buffers of the staging area by waiting.
// A page that is pinned, being written or being read is never evicted; a page with a valid record
// on disk is dropped, others are written first or dropped if the tier will not have them.
#include <algorithm>

#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {
constexpr int kEvictionsPerGrant = 64;  // dropped at once to serve one request for a slot
constexpr size_t kClearBatch = 64;
constexpr uint64_t kStarvedUsMax = 50'000;  // without anything to evict
}  // namespace

Grant EngineImpl::AcquireSlot(Block& block, uint64_t bytes) {
  if (!pool().CanEverFit(bytes)) return Grant::kNever;
  block.slot_bytes = bytes;
  if (!slot_wait.empty() && retrying != &slot_wait) {
    Wait(slot_wait, block);
    return Grant::kWait;
  }
  Grant grant = Grant::kGot;
  for (int i = 0; i < kEvictionsPerGrant && grant == Grant::kGot; ++i) {
    if (const SlotId slot = pool().Allocate(bytes); slot.valid()) {
      block.page = slot;
      block.page_owned = true;
      block.starved_us = 0;
      ++transient_slots;
      return Grant::kGot;
    }
    grant = MakeRoom(bytes);
  }
  if (grant == Grant::kNever) {
    // What operations in flight hold comes back soon, unless it is pinned by clients as well.
    if (block.starved_us == 0) block.starved_us = now();
    if (transient_slots == 0 || now() - block.starved_us >= kStarvedUsMax) return Grant::kNever;
  } else {
    block.starved_us = 0;
  }
  Wait(slot_wait, block);
  return Grant::kWait;
}

// kGot: something was freed, try again. kWait: something will be freed. kNever: nothing can be.
Grant EngineImpl::MakeRoom(uint64_t bytes) {
  const auto size_class = static_cast<uint32_t>(PagePool::ClassBytes(bytes) / kPageAlignment);
  const EntryId victim = policy->Victim(size_class);
  if (victim != kNoId) return EvictOne(victim);
  return MakeRoomByClearing(bytes);
}

// The class has nothing to give: a run of slabs of other classes is emptied for it. A run stays
// chosen until it is empty, unless a client pinned a page in it; choosing anew each time would
// evict all over the pool and free nothing.
Grant EngineImpl::MakeRoomByClearing(uint64_t bytes) {
  if (pool().clearing_bytes() != PagePool::ClassBytes(bytes)) {
    const EntryId oldest = policy->Victim(kAnyClass);
    if (oldest == kNoId || !pool().BeginClear(bytes, index.at(oldest).slot)) {
      return evictions > 0 ? Grant::kWait : Grant::kNever;
    }
  }
  std::array<SlotId, kClearBatch> batch;
  const size_t count = pool().NextToClear(absl::MakeSpan(batch));
  Grant best = count == 0 ? Grant::kWait : Grant::kNever;  // 0: released, but pinned for a moment
  for (size_t i = 0; i < count; ++i) {
    const uint32_t owner = slot_owner[batch[i].value];
    const bool of_an_operation = owner == 0 || index.at(owner - 1).append != kNoId;
    if (!of_an_operation && index.at(owner - 1).client_pins > 0) {
      pool().CancelClear();
      return Grant::kNever;
    }
    if (of_an_operation || pool().pins(batch[i]) > 0) {
      best = std::min(best, Grant::kWait);
    } else {
      best = std::min(best, EvictOne(owner - 1));
    }
  }
  return best;
}

Grant EngineImpl::EvictOne(EntryId id) {
  const Entry& entry = index.at(id);
  const uint64_t bytes = PageSlotBytes(entry.payload_bytes);
  if (entry.on_disk()) {
    ++counts.evicted_to_nvme;
    counts.evicted_bytes += bytes;
    DetachSlot(id);
    return Grant::kGot;
  }
  BlockResult result = BlockResult::kIo;
  if (log != nullptr && options.nvme_admit_all) {
    if (evictions >= options.limits.evictions_max) return Grant::kWait;
    result = StartAppend(id, false, true);
    if (result == BlockResult::kOk || result == BlockResult::kBusy) return Grant::kWait;
    ++counts.eviction_failures;
  }
  ++counts.evicted_dropped;
  counts.evicted_bytes += bytes;
  EraseEntry(id);
  return Grant::kGot;
}

// While blocks wait for room, as many victims are on their way to disk as there are blocks.
// REQUIRES: options.nvme_admit_all and a log, or nothing is done.
void EngineImpl::KeepEvictionsAhead() {
  if (slot_wait.empty() || log == nullptr || !options.nvme_admit_all) return;
  const uint32_t wanted = std::min(slot_wait.size(), options.limits.evictions_max);
  const uint64_t bytes = PagePool::ClassBytes(blocks[slot_wait.front()].slot_bytes);
  for (uint32_t i = evictions; i < wanted; ++i) {
    const EntryId victim = policy->Victim(static_cast<uint32_t>(bytes / kPageAlignment));
    if (victim == kNoId || index.at(victim).on_disk()) return;
    if (StartAppend(victim, false, true) != BlockResult::kOk) return;
  }
}

bool EngineImpl::AcquireStaging(Block& block, uint64_t bytes, StageHalf half) {
  const auto which = static_cast<size_t>(half);
  block.half = half;
  if (peers.Alive(block.peer, block.peer_generation) &&
      peers[block.peer].staged_bytes[which] > pool().staging_free_bytes(half)) {
    Wait(share_wait, block);
    return false;
  }
  List<Block>& list = stage_wait[which];
  if (list.empty() || retrying == &list) {
    block.staging = pool().AllocateStaging(bytes, half);
    if (block.staging.valid()) {
      CountStaging(block, block.staging);
      return true;
    }
  }
  Wait(list, block);
  return false;
}

void EngineImpl::CountStaging(Block& block, SlotId slot) {
  if (!peers.Alive(block.peer, block.peer_generation)) return;
  peers[block.peer].staged_bytes[static_cast<size_t>(block.half)] += pool().memory(slot).size();
}

void EngineImpl::AttachSlot(EntryId id, SlotId slot) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(!entry.in_memory() && slot.valid());
  entry.slot = slot;
  entry.touched = false;
  slot_owner[slot.value] = id + 1;
  policy->Insert(id, static_cast<uint32_t>(pool().memory(slot).size() / kPageAlignment));
  policy->SetChildren(id, entry.children);
  if (entry.client_pins > 0) pool().Pin(slot);
  Rehold(id);
}

void EngineImpl::DetachSlot(EntryId id) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(entry.in_memory());
  ForgetPrefetched(id);
  policy->Erase(id);
  slot_owner[entry.slot.value] = 0;
  if (entry.client_pins > 0) pool().Unpin(entry.slot);
  pool().Release(entry.slot);
  entry.slot = {};
}

void EngineImpl::PinForBlock(Block& block, EntryId id) {
  const Entry& entry = index.at(id);
  pool().Pin(entry.slot);
  ++transient_slots;
  block.page = entry.slot;
  block.page_pinned = true;
  block.entry = id;
  block.entry_generation = entry.generation;
  Rehold(id);
}

void EngineImpl::Rehold(EntryId id) {
  const Entry& entry = index.at(id);
  if (!entry.in_memory()) return;
  if (pool().pins(entry.slot) > 0) {
    policy->Hold(id);
  } else {
    policy->Unhold(id);
  }
}

void EngineImpl::SetParent(EntryId id, uint64_t parent_prefix) {
  Entry& entry = index.at(id);
  if (entry.parent_prefix == parent_prefix) return;
  for (const uint64_t prefix : {entry.parent_prefix, parent_prefix}) {
    if (prefix == 0) continue;
    const EntryId parent = index.FindPrefix(prefix);
    if (parent == kNoId) continue;
    uint32_t& children = index.at(parent).children;
    if (prefix == parent_prefix) {
      ++children;
    } else if (children > 0) {
      --children;
    }
    policy->SetChildren(parent, children);
  }
  entry.parent_prefix = parent_prefix;
}

void EngineImpl::EraseEntry(EntryId id) {
  SetParent(id, 0);
  if (index.at(id).in_memory()) DetachSlot(id);
  index.Erase(id);
}

// The page is gone in every tier, also after a restart.
void EngineImpl::ForgetPage(EntryId id) {
  const Entry& entry = index.at(id);
  if (entry.on_disk()) ForgetRecord(entry.key, entry.location, kNoId);
  EraseEntry(id);
}

// A full index forgets the page that would be evicted next; pages on disk alone have no order, so
// the one found at the sweeping hand goes. Never one whose successor is being written: the
// tombstone would hide that too.
EntryId EngineImpl::InsertEntry(const BlockKey& key) {
  EntryId id = index.Insert(key);
  if (id != kNoId) return id;
  for (uint32_t i = 0; i < kEventsPerPoll; ++i) {
    index_hand = index_hand + 1 < index.scan_end() ? index_hand + 1 : 0;
    const Entry& entry = index.at(index_hand);
    if (!entry.live || entry.in_memory() || entry.read != kNoId) continue;
    if (FindAppend(entry.key) != kNoId) continue;
    ForgetPage(index_hand);
    return index.Insert(key);
  }
  const EntryId victim = policy->Victim(kAnyClass);
  if (victim == kNoId || FindAppend(index.at(victim).key) != kNoId) return kNoId;
  const Entry& entry = index.at(victim);
  ++counts.evicted_dropped;
  counts.evicted_bytes += PageSlotBytes(entry.payload_bytes);
  ForgetPage(victim);
  return index.Insert(key);
}

}  // namespace crumb::core
