// One entry's slot, parent and life: the same for every path.
#include <utility>

#include "cachesvc/core/engine_basics.h"

namespace crumb::core {
namespace {

// A page in memory that names this parent came or went. The policy protects parents of pages that
// are in memory; one that is not known, or on disk alone, needs no protection.
void CountResident(EngineBasics* state, uint64_t parent_prefix, int change) {
  if (parent_prefix == 0) return;
  const EntryId id = state->index.FindPrefix(parent_prefix);
  if (id == kNoId) return;
  Entry& parent = state->index.at(id);
  if (change < 0 && parent.resident_children == 0) return;  // it came after this child
  change > 0 ? ++parent.resident_children : --parent.resident_children;
  if (parent.resident() && !parent.fresh) {
    state->PolicyOf(parent.slot).SetChildren(id, parent.resident_children);
  }
}

}  // namespace

void EngineBasics::AttachSlot(EntryId id, SlotId slot) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(!entry.resident() && slot.valid());
  entry.slot = slot;
  entry.touched = false;
  entry.gpu_got = false;
  if (!IsHbm(slot)) slot_owner[slot.value] = id + 1;
  CRUMB_CHECK(entry.fresh == (PoolOf(slot).kind(Bare(slot)) == SlabKind::kFresh));
  if (entry.client_pins > 0) PinSlot(slot);
  CountResident(this, entry.parent_prefix, 1);
  if (entry.fresh) return;  // no candidate for eviction before it is demoted
  EvictionPolicy& order = PolicyOf(slot);
  order.Insert(id, {.size_class = static_cast<uint32_t>(MemoryOf(slot).size() / kPageAlignment),
                    .key = entry.key.prefix64()});
  if (entry.resident_children > 0) order.SetChildren(id, entry.resident_children);
  Rehold(id);
}

void EngineBasics::DetachSlot(EntryId id, Leaving why) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(entry.resident());
  ForgetPrefetched(id);
  CountResident(this, entry.parent_prefix, -1);
  if (!entry.fresh) PolicyOf(entry.slot).Erase(id, {.why = why, .key = entry.key.prefix64()});
  if (!IsHbm(entry.slot)) slot_owner[entry.slot.value] = 0;
  if (entry.client_pins > 0) UnpinSlot(entry.slot);
  ReleaseSlot(entry.slot);
  entry.slot = {};
}

EntryId EngineBasics::Adopt(EntryId id) {
  Entry& entry = index.at(id);
  entry.children = chains.Insert(id, entry.key.prefix64());
  return id;
}

// REQUIRES: it is on disk.
void EngineBasics::LeaveMemory(EntryId id, Leaving why) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(entry.on_disk());
  OrphanDemotion(id);
  chains.Remove(id);
  DetachSlot(id, why);
  entry.fresh = false;
}

void EngineBasics::PinForBlock(Block& block, EntryId id) {
  const Entry& entry = index.at(id);
  PinSlot(entry.slot);
  ++transient_slots;
  block.page = entry.slot;
  block.page_pinned = true;
  block.entry = id;
  block.entry_generation = entry.generation;
  Rehold(id);
}

void EngineBasics::Rehold(EntryId id) {
  const Entry& entry = index.at(id);
  if (!entry.resident() || entry.fresh) return;
  EvictionPolicy& order = PolicyOf(entry.slot);
  PinsOf(entry.slot) > 0 ? order.Hold(id) : order.Unhold(id);
}

void EngineBasics::SetParent(EntryId id, uint64_t parent_prefix) {
  Entry& entry = index.at(id);
  if (entry.parent_prefix == parent_prefix) return;
  for (const uint64_t prefix : {entry.parent_prefix, parent_prefix}) {
    if (prefix == 0) continue;
    const EntryId parent = index.FindPrefix(prefix);
    if (parent == kNoId) {
      prefix == parent_prefix ? chains.AddGhostChild(prefix) : chains.DropGhostChild(prefix);
      continue;
    }
    if (entry.resident()) CountResident(this, prefix, prefix == parent_prefix ? 1 : -1);
    uint32_t& children = index.at(parent).children;
    if (prefix == parent_prefix) {
      ++children;
    } else if (children > 0) {
      --children;
    }
  }
  entry.parent_prefix = parent_prefix;
}

void EngineBasics::EraseEntry(EntryId id) {
  OrphanDemotion(id);
  const Entry& entry = index.at(id);
  const uint64_t prefix = entry.key.prefix64();
  const Ghost left{.newest_end = chains.newest_end(id),
                   .children = entry.children,
                   .parent_prefix = entry.parent_prefix};
  CountPage(entry.precision, -1);
  SetParent(id, 0);
  if (entry.resident()) DetachSlot(id, Leaving::kGone);
  chains.Erase(id, prefix, left);
  index.Erase(id);
}

// A demotion that is under way has nothing to swap any more; it ends by itself.
void EngineBasics::OrphanDemotion(EntryId id) {
  const uint32_t demotion = chains.demotion(id);
  if (demotion == kNoId) return;
  demotions[demotion].entry = kNoId;
  chains.SetDemotion(id, kNoId);
}

void EngineBasics::CountPage(Precision precision, int change) {
  uint64_t& pages = counts.pages[static_cast<size_t>(precision)];
  CRUMB_CHECK(change > 0 || pages > 0);
  change > 0 ? ++pages : --pages;
}

void EngineBasics::CountEncode(const PageJob& job) {
  ++counts.encode_pages;
  counts.encode_us += job.took_us;
  counts.encode_raw_bytes += job.header.raw_bytes;
  counts.encode_packed_bytes += PageSlotBytes(job.header.payload_bytes);
  counts.error_k += job.report.error_k;
  counts.energy_k += job.report.energy_k;
  counts.error_v += job.report.error_v;
  counts.energy_v += job.report.energy_v;
}

}  // namespace crumb::core
