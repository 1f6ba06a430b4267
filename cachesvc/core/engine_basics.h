// What the engine's paths share: steps on one entry, block or chain that start no path and send
// nothing. INVARIANT: a fresh entry is in memory, in a fresh slab, unknown to the eviction policy,
// and in a queue of `chains` or under demotion.
#ifndef CRUMB_CACHESVC_CORE_ENGINE_BASICS_H_
#define CRUMB_CACHESVC_CORE_ENGINE_BASICS_H_

#include <algorithm>
#include <span>
#include <vector>

#include "cachesvc/core/engine_state.h"

namespace crumb::core {

// Where an entry's page lies from now on.
struct NewSlot {
  SlotId slot;
  bool fresh = false;
  bool gpu_put = false;
  bool got = false;
};

class EngineBasics : public EngineState {
 public:
  using EngineState::EngineState;

  PagePool& hbm() const { return *options.hbm.pool; }
  bool has_hbm() const { return options.hbm.pool != nullptr; }
  // Of slots of either pool.
  PagePool& PoolOf(SlotId slot) const { return IsHbm(slot) ? hbm() : pool(); }
  EvictionPolicy& PolicyOf(SlotId slot) const { return IsHbm(slot) ? *hbm_policy : *policy; }
  static SlotId Bare(SlotId slot) { return {slot.value & ~kHbmSlotBit}; }
  MutableBytes MemoryOf(SlotId slot) const { return PoolOf(slot).memory(Bare(slot)); }
  void PinSlot(SlotId slot) const { PoolOf(slot).Pin(Bare(slot)); }
  void UnpinSlot(SlotId slot) const { PoolOf(slot).Unpin(Bare(slot)); }
  void ReleaseSlot(SlotId slot) const { PoolOf(slot).Release(Bare(slot)); }
  uint32_t PinsOf(SlotId slot) const { return PoolOf(slot).pins(Bare(slot)); }
  // Of an entry in memory.
  Resident& PageOf(const Entry& entry) { return pages[entry.place]; }
  // Of any entry.
  SlotId SlotOf(const Entry& entry) const {
    return entry.resident() ? pages[entry.place].slot : SlotId{};
  }
  bool IsFresh(const Entry& entry) const { return entry.resident() && pages[entry.place].fresh; }
  uint32_t AppendOf(const Entry& entry) const {
    return entry.resident() ? pages[entry.place].append : kNoId;
  }
  // A get was served from it, or it is wanted soon.
  void TouchPage(const Entry& entry) {
    Resident& page = PageOf(entry);
    page.touched = true;
    if (!page.fresh) PolicyOf(page.slot).Touch(entry.place);
  }
  // It was evicted, or read from NVMe, not long ago; asking forgets it.
  bool SeenLately(const BlockKey& key) {
    return seen_keys.Take(key.prefix64(), kSeenWindow * std::max(pages.size(), 1u));
  }
  EntryId VictimOf(EvictionPolicy& order, uint32_t size_class) const {
    const PageId page = order.Victim(size_class);
    return page == kNoId ? kNoId : pages[page].entry;
  }

  // blocks.cc
  void Wait(List<Block>& list, Block& block);
  void WakeAll(List<Block>& list);
  void ReleasePage(Block& block);
  void ReleaseStaging(Block& block);
  bool Lead(Block& block);
  void EndPhase(Block& block, Phase phase);

  bool SubmitJob(Block& block);

  // messages.cc, slots.cc
  std::shared_ptr<const Binding> FindBinding(uint32_t handle, const Session& session) const;
  void CountStaging(Block& block, SlotId slot);
  Grant Starve(Block& block);

  // moves.cc
  size_t PollLinks();

  // entries.cc
  void AttachSlot(EntryId id, const NewSlot& to);  // the entry owns it from now on
  void DetachSlot(EntryId id, Leaving why);        // releases it
  void LeaveMemory(EntryId id, Leaving why);       // stays on disk
  void PinForBlock(Block& block, EntryId id);
  void Rehold(EntryId id);    // tells the policy whether the entry may be evicted
  EntryId Adopt(EntryId id);  // a new entry learns what its ghost knew
  void EraseEntry(EntryId id);
  void SetParent(EntryId id, uint64_t parent_prefix);
  void OrphanDemotion(EntryId id);  // REQUIRES: it is in memory
  void CountPage(Precision precision, int change);
  void CountEncode(const PageJob& job);

  // prefetch.cc
  void ForgetPrefetched(EntryId id);

  // disk.cc
  uint32_t FindAppend(const BlockKey& key) const;  // that writes a page of the key, or kNoId
  bool AppendInFlight(const BlockKey& key) const;
  BlockResult QueueAppend(DiskAppend& append, uint32_t id);

  // windows.cc
  void PlaceBlock(Block& block) const;
  void NoteCommit(const Block& block, EntryId id);
  void NoteRecovered(EntryId id);
  void LinkRecovered();  // after the last of them
  std::vector<EntryId> FindParents();
  void TellAncestors(std::span<const EntryId> parents, EntryId id);
  uint64_t TellGhost(uint64_t prefix, uint32_t end);
  void GrowChain(uint64_t prefix, uint32_t end, uint32_t span);
  void NoteGrowth(EntryId id, uint32_t recent_tokens);
  void FindDue();
  void MakeDue(PageId page, DemotionReason reason);
  uint64_t FreshLimit() const { return pool().capacity_bytes() * options.fresh_percent / 100; }
  uint64_t NextIdleUs() const;  // when the next fresh page was idle for long enough
  bool DemotionsWait() const;   // some must be looked at again
  bool AllStuck() const;        // no demotion can start or go on

 private:
  uint32_t NewestEnd(const BlockKey& key) const;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_ENGINE_BASICS_H_
