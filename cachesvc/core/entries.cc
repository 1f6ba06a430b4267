// One entry's slot, parent and life: the same for every path.
#include <algorithm>
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
  CountHint(&parent.resident_children, change);
  if (!parent.resident() || state->PageOf(parent).fresh) return;
  state->PolicyOf(state->PageOf(parent).slot).SetChildren(parent.place, parent.resident_children);
}

}  // namespace

void EngineBasics::AttachSlot(EntryId id, const NewSlot& to) {
  Entry& entry = index.at(id);
  CRUMB_CHECK(!entry.resident() && to.slot.valid());
  CRUMB_CHECK(to.fresh == (PoolOf(to.slot).kind(Bare(to.slot)) == SlabKind::kFresh));
  entry.place = pages.Take(id, to.slot);
  entry.memory = IsHbm(to.slot) ? Tier::kHbm : Tier::kDram;
  chains.Enter(entry.place);
  Resident& page = pages[entry.place];
  page.fresh = to.fresh;
  page.gpu_put = to.gpu_put;
  page.got = to.got;
  if (!page.in_hbm()) slot_owner[page.slot.value] = id + 1;
  if (entry.pinned) PinSlot(page.slot);
  CountResident(this, entry.parent_prefix, 1);
  if (page.fresh) return;  // no candidate for eviction before it is demoted
  EvictionPolicy& order = PolicyOf(page.slot);
  order.Insert(entry.place,
               {.size_class = static_cast<uint32_t>(MemoryOf(page.slot).size() / kPageAlignment),
                .key = entry.key.prefix64()});
  if (entry.resident_children > 0) order.SetChildren(entry.place, entry.resident_children);
  Rehold(id);
}

void EngineBasics::DetachSlot(EntryId id, Leaving why) {
  Entry& entry = index.at(id);
  OrphanDemotion(id);
  ForgetPrefetched(id);
  CountResident(this, entry.parent_prefix, -1);
  const PageId number = entry.place;
  const Resident& page = PageOf(entry);
  chains.Remove(number);
  if (page.append != kNoId) appends[page.append].entry = kNoId;  // it writes an image that goes
  if (!page.fresh) PolicyOf(page.slot).Erase(number, {.why = why, .key = entry.key.prefix64()});
  if (!page.in_hbm()) slot_owner[page.slot.value] = 0;
  if (entry.pinned) UnpinSlot(page.slot);
  ReleaseSlot(page.slot);
  pages.Give(number);
  entry.memory = Tier::kNone;
  entry.place = kNoId;
}

EntryId EngineBasics::Adopt(EntryId id) {
  Entry& entry = index.at(id);
  const Ghost ghost = chains.TakeGhost(entry.key.prefix64());
  entry.children = static_cast<uint16_t>(std::min(ghost.children, 0xffffu));
  entry.newest_end = ghost.newest_end;
  return id;
}

// REQUIRES: it is on disk.
void EngineBasics::LeaveMemory(EntryId id, Leaving why) {
  CRUMB_CHECK(index.at(id).on_disk());
  DetachSlot(id, why);
}

void EngineBasics::PinForBlock(Block& block, EntryId id) {
  const Entry& entry = index.at(id);
  PinSlot(SlotOf(entry));
  ++transient_slots;
  block.page = SlotOf(entry);
  block.page_pinned = true;
  block.entry = id;
  block.entry_generation = entry.generation;
  Rehold(id);
}

void EngineBasics::Rehold(EntryId id) {
  const Entry& entry = index.at(id);
  if (!entry.resident() || PageOf(entry).fresh) return;
  const SlotId slot = SlotOf(entry);
  PinsOf(slot) > 0 ? PolicyOf(slot).Hold(entry.place) : PolicyOf(slot).Unhold(entry.place);
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
    CountHint(&index.at(parent).children, prefix == parent_prefix ? 1 : -1);
  }
  entry.parent_prefix = parent_prefix;
}

void EngineBasics::EraseEntry(EntryId id) {
  const Entry& entry = index.at(id);
  const uint64_t prefix = entry.key.prefix64();
  const Ghost left{.newest_end = entry.newest_end,
                   .children = entry.children,
                   .parent_prefix = entry.parent_prefix};
  CountPage(index.kind(id).precision, -1);
  SetParent(id, 0);
  if (entry.resident()) DetachSlot(id, Leaving::kGone);
  if (entry.pinned) client_pins.erase(id);
  chains.LeaveGhost(prefix, left);
  index.Erase(id);
}

// A demotion that is under way has nothing to swap any more; it ends by itself.
void EngineBasics::OrphanDemotion(EntryId id) {
  const PageId page = index.at(id).place;
  const uint32_t demotion = chains.demotion(page);
  if (demotion == kNoId) return;
  demotions[demotion].entry = kNoId;
  chains.SetDemotion(page, kNoId);
}

void EngineBasics::CountPage(Precision precision, int change) {
  uint64_t& count = counts.pages[static_cast<size_t>(precision)];
  CRUMB_CHECK(change > 0 || count > 0);
  change > 0 ? ++count : --count;
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
