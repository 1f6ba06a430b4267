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

Grant EngineImpl::AcquireSlot(Block& block, uint64_t bytes, SlabKind kind) {
  if (!pool().CanEverFit(bytes)) return Grant::kNever;
  block.slot_bytes = bytes;
  block.slot_kind = kind;
  if (!slot_wait.empty() && retrying != &slot_wait) {
    Wait(slot_wait, block);
    return Grant::kWait;
  }
  const Grant grant = TakeSlot({.bytes = bytes, .kind = kind}, &block.page);
  if (grant == Grant::kGot) block.page_owned = true;
  if (grant == Grant::kNever) {
    if (Starve(block) == Grant::kNever) return Grant::kNever;
  } else {
    block.starved_us = 0;
  }
  if (grant == Grant::kGot) return grant;
  Wait(slot_wait, block);
  return Grant::kWait;
}

// Nothing can be freed now. What operations in flight hold comes back soon, unless it is pinned by
// clients as well.
Grant EngineBasics::Starve(Block& block) {
  if (block.starved_us == 0) block.starved_us = now();
  const bool for_long = now() - block.starved_us >= kStarvedUsMax;
  return transient_slots == 0 || for_long ? Grant::kNever : Grant::kWait;
}

// A slot for a fresh page: within the fresh share, waiting for a demotion as for an eviction.
Grant EngineImpl::AcquireFresh(Block& block, uint64_t bytes) {
  block.slot_bytes = bytes;
  block.slot_kind = SlabKind::kFresh;
  // Who came from the wait for slots fitted the share before, and goes back there.
  const bool first = fresh_wait.empty() || retrying == &fresh_wait || retrying == &slot_wait;
  if (first && pool().FreshFits(bytes, FreshLimit())) {
    return AcquireSlot(block, bytes, SlabKind::kFresh);
  }
  const bool nothing_to_demote =
      chains.size(FreshQueue::kGrowing) == 0 && chains.size(FreshQueue::kDue) == 0 && AllStuck();
  const bool hopeless = nothing_to_demote || (demotions.taken() > 0 && AllStuck());
  if (first && hopeless) {
    if (Starve(block) == Grant::kNever) return Grant::kNever;
  } else {
    block.starved_us = 0;
  }
  Wait(fresh_wait, block);
  return Grant::kWait;
}

// kGot: `slot` is taken, and counted. Evicts for it, as much as one turn may.
Grant EngineGpu::TakeSlot(const RoomWanted& wanted, SlotId* slot) {
  Grant grant = Grant::kGot;
  for (int i = 0; i < kEvictionsPerGrant && grant == Grant::kGot; ++i) {
    *slot = pool().Allocate(wanted.bytes, wanted.kind);
    if (slot->valid()) {
      ++transient_slots;
      return Grant::kGot;
    }
    grant = MakeRoom(wanted);
  }
  return grant == Grant::kGot ? Grant::kWait : grant;
}

// kGot: something was freed, try again. kWait: something will be freed. kNever: nothing can be.
Grant EngineImpl::MakeRoom(const RoomWanted& wanted) {
  if (wanted.kind == SlabKind::kLasting) {
    const auto size_class =
        static_cast<uint32_t>(PagePool::ClassBytes(wanted.bytes) / kPageAlignment);
    const EntryId victim = VictimOf(*policy, size_class);
    if (victim != kNoId) return EvictOne(victim);
  }
  return MakeRoomByClearing(wanted);
}

// The class has nothing to give: a run of slabs of other classes is emptied for it. A run stays
// chosen until it is empty, unless a client pinned a page in it; choosing anew each time would
// evict all over the pool and free nothing.
Grant EngineImpl::MakeRoomByClearing(const RoomWanted& wanted) {
  const bool chosen = pool().clearing_bytes() == PagePool::ClassBytes(wanted.bytes) &&
                      pool().clearing_kind() == wanted.kind;
  if (!chosen) {
    // One run at a time: a demotion's is emptied before another is chosen, and a demotion waits for
    // that of the blocks.
    if (clear_owner != kNoId) return Grant::kWait;
    if (wanted.demotion != kNoId && pool().clearing_bytes() != 0) return Grant::kNever;
    const PageId oldest = policy->Victim(kAnyClass);
    const SlotId hint = oldest == kNoId ? SlotId{} : pages[oldest].slot;
    const bool something = oldest != kNoId || chains.front(FreshQueue::kGrowing) != kNoId;
    if (!something || !pool().BeginClear(wanted.bytes, hint, wanted.kind)) {
      return evictions > 0 ? Grant::kWait : Grant::kNever;
    }
    clear_owner = wanted.demotion;
  }
  std::array<SlotId, kClearBatch> batch;
  const size_t count = pool().NextToClear(absl::MakeSpan(batch));
  Grant best = count == 0 ? Grant::kWait : Grant::kNever;  // 0: released, but pinned for a moment
  for (size_t i = 0; i < count; ++i) {
    const Grant grant = ClearSlot(batch[i], wanted.demotion);
    if (grant == Grant::kNever) {
      pool().CancelClear();
      clear_owner = kNoId;
      return grant;
    }
    best = std::min(best, grant);
  }
  return best;
}

// kNever: a client's pin keeps it.
Grant EngineImpl::ClearSlot(SlotId slot, uint32_t demotion) {
  const uint32_t owner = slot_owner[slot.value];
  if (owner == 0 || AppendOf(index.at(owner - 1)) != kNoId) return Grant::kWait;  // of an operation
  const Entry& entry = index.at(owner - 1);
  if (IsFresh(entry)) return EvictFresh(owner - 1, demotion);
  if (entry.pinned) return Grant::kNever;
  return pool().pins(slot) > 0 ? Grant::kWait : EvictOne(owner - 1);
}

// A fresh page leaves its slot by being demoted. It is forgotten where no slot can be had for that,
// and where its slot is wanted for a demotion: the two would wait for each other.
Grant EngineImpl::EvictFresh(EntryId id, uint32_t wanted_by) {
  const PageId page = index.at(id).place;
  const uint32_t demotion = chains.demotion(page);
  const bool waits_too = demotion == kNoId || demotions[demotion].step == DemotionStep::kSlot;
  bool stuck = AllStuck() && demotions.free() == 0;
  if (demotion != kNoId) stuck = demotions[demotion].stuck;
  if (wanted_by != kNoId) stuck = waits_too;
  if (!stuck) {
    if (chains.queue(page) == FreshQueue::kGrowing) MakeDue(page, DemotionReason::kRoom);
    return Grant::kWait;
  }
  const Entry& entry = index.at(id);
  if (entry.pinned) return Grant::kNever;
  ++counts.fresh_dropped;
  entry.on_disk() ? LeaveMemory(id, Leaving::kEvicted) : EraseEntry(id);
  return Grant::kGot;
}

Grant EngineImpl::EvictOne(EntryId id) {
  const Entry& entry = index.at(id);
  const uint64_t bytes = index.kind(id).slot_bytes();
  if (entry.on_disk()) {
    ++counts.evicted_to_nvme;
    counts.evicted_bytes += bytes;
    DetachSlot(id, Leaving::kEvicted);
    return Grant::kGot;
  }
  BlockResult result = BlockResult::kIo;
  if (log != nullptr && !GoesToNvme(id)) {
    ++counts.evicted_unseen;
    seen_keys.Add(entry.key.prefix64());
  } else if (log != nullptr && !MayWriteSpare()) {
    ++counts.evicted_over_budget;
  } else if (log != nullptr) {
    if (evictions >= options.limits.evictions_max) return Grant::kWait;
    result = StartAppend(id, false, true);
    if (result == BlockResult::kOk || result == BlockResult::kBusy) return Grant::kWait;
    ++counts.eviction_failures;
  }
  ++counts.evicted_dropped;
  counts.evicted_bytes += bytes;
  DetachSlot(id, Leaving::kEvicted);
  EraseEntry(id);
  return Grant::kGot;
}

// REQUIRES: it is in memory alone.
bool EngineImpl::GoesToNvme(EntryId id) const {
  return options.nvme_admission == NvmeAdmission::kAll || pages[index.at(id).place].got;
}

// While blocks wait for room, as many victims are on their way to disk as there are blocks.
// REQUIRES: a log, or nothing is done.
void EngineImpl::KeepEvictionsAhead() {
  if (slot_wait.empty() || log == nullptr) return;
  const uint32_t wanted = std::min(slot_wait.size(), options.limits.evictions_max);
  if (blocks[slot_wait.front()].slot_kind == SlabKind::kFresh) return;
  const uint64_t bytes = PagePool::ClassBytes(blocks[slot_wait.front()].slot_bytes);
  for (uint32_t i = evictions; i < wanted; ++i) {
    const EntryId victim = VictimOf(*policy, static_cast<uint32_t>(bytes / kPageAlignment));
    if (victim == kNoId || index.at(victim).on_disk() || !GoesToNvme(victim)) return;
    if (!MayWriteSpare()) return;
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

void EngineBasics::CountStaging(Block& block, SlotId slot) {
  if (!peers.Alive(block.peer, block.peer_generation)) return;
  peers[block.peer].staged_bytes[static_cast<size_t>(block.half)] += pool().memory(slot).size();
}

// The page is gone in every tier, also after a restart.
void EngineImpl::ForgetPage(EntryId id) {
  if (index.at(id).on_disk()) ForgetRecord(index.at(id).key, index.location(id), kNoId);
  EraseEntry(id);
}

// A full index forgets the page that would be evicted next; pages on disk alone have no order, so
// the one found at the sweeping hand goes. Never one whose successor is being written: the
// tombstone would hide that too.
EntryId EngineImpl::InsertEntry(const BlockKey& key) {
  EntryId id = index.Insert(key);
  if (id != kNoId) return Adopt(id);
  for (uint32_t i = 0; i < kEventsPerPoll; ++i) {
    index_hand = index_hand + 1 < index.scan_end() ? index_hand + 1 : 0;
    const Entry& entry = index.at(index_hand);
    if (!entry.live || entry.resident() || entry.read() != kNoId) continue;
    if (FindAppend(entry.key) != kNoId) continue;
    ForgetPage(index_hand);
    return Adopt(index.Insert(key));
  }
  EntryId victim = VictimOf(*policy, kAnyClass);
  if (victim == kNoId && has_hbm()) victim = VictimOf(*hbm_policy, kAnyClass);
  if (victim == kNoId || FindAppend(index.at(victim).key) != kNoId) return kNoId;
  ++counts.evicted_dropped;
  counts.evicted_bytes += index.kind(victim).slot_bytes();
  DetachSlot(victim, Leaving::kEvicted);
  ForgetPage(victim);
  return Adopt(index.Insert(key));
}

}  // namespace crumb::core
