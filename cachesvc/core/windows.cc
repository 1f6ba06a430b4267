// Precision by position: where a put belongs, and what its commit means for the pages before it.
// Chains may branch, and their pages may come in any order. A walk towards the root stops at the
// first page that knew of an end past its window already, for then all before it knew too: it
// passes only what is within the window, however long the chain is.
#include <algorithm>

#include "cachesvc/core/engine_basics.h"

namespace crumb::core {
namespace {

uint64_t OwnEnd(const Entry& entry) { return uint64_t{entry.token_start} + entry.token_count; }

// Whether a chain that reaches `newest` leaves the page behind its window.
bool IsPast(uint64_t own_end, uint32_t newest, uint32_t recent_tokens) {
  return newest >= own_end + recent_tokens;
}

}  // namespace

uint32_t EngineBasics::NewestEnd(const BlockKey& key) const {
  const EntryId id = index.Find(key);
  if (id != kNoId) return index.at(id).newest_end;
  const Ghost* ghost = chains.FindGhost(key.prefix64());
  return ghost == nullptr ? 0 : ghost->newest_end;
}

// Sets block.place and the rung that it would be stored with now.
void EngineBasics::PlaceBlock(Block& block) const {
  const Binding& binding = *block.binding;
  const uint32_t part = block.wire.part;
  const bool position_known = block.wire.token_start != kTokenStartUnknown;
  block.place = Place::kFinal;
  block.rung = block.form == PageForm::kRaw ? binding.rung(part, position_known) : 0;
  const WindowPolicy& windows = binding.windows();
  const bool windowed =
      block.form == PageForm::kRaw && position_known && windows.on && binding.lossy(part);
  if (!windowed) return;
  const uint64_t run = pool().RunBytes(PageSlotBytes(binding.part(part).raw_bytes));
  const uint32_t count =
      block.wire.token_count == 0 ? binding.part(part).page_tokens : block.wire.token_count;
  const uint64_t own_end = uint64_t{block.wire.token_start} + count;
  if (block.wire.token_start < windows.sink_tokens) {
    block.place = Place::kSink;
  } else if (!IsPast(
                 own_end,
                 std::max({NewestEnd(block.key), block.known_end, static_cast<uint32_t>(own_end)}),
                 windows.recent_tokens) &&
             run != 0 && run <= FreshLimit()) {
    block.place = Place::kFresh;
  } else {
    return;
  }
  block.rung = static_cast<uint32_t>(binding.ladder(part).size()) - 1;
}

// The page is published: what comes before it in its chain learns of its end.
void EngineBasics::NoteCommit(const Block& block, EntryId id) {
  Entry& entry = index.at(id);
  const WindowPolicy& windows = block.binding->windows();
  const bool position_known = entry.token_start != kTokenStartUnknown;
  if (!position_known && block.form == PageForm::kRaw && block.binding->lossy(block.wire.part) &&
      !block.binding->layout().identity().k_before_rope) {
    ++counts.unknown_position_pages;
    const uint64_t identity = index.kind(id).identity_prefix;
    const auto end = unknown_layouts.end();
    const bool said = std::find(unknown_layouts.begin(), end, identity) != end;
    if (!said && unknown_layouts.size() < options.limits.layouts_max) {
      unknown_layouts.push_back(identity);
    }
  }
  if (!windows.on) return;
  const auto own_end = static_cast<uint32_t>(OwnEnd(entry));
  if (position_known) entry.newest_end = std::max(entry.newest_end, own_end);
  if (IsFresh(entry)) NoteGrowth(id, windows.recent_tokens);
  GrowChain(entry.parent_prefix, entry.newest_end, windows.recent_tokens);
}

void EngineBasics::NoteRecovered(EntryId id) {
  Entry& entry = index.at(id);
  if (entry.token_start == kTokenStartUnknown) return;
  entry.newest_end = std::max(entry.newest_end, static_cast<uint32_t>(OwnEnd(entry)));
}

// What was recovered finds its parents and learns how far its chains reach. WHY at the end, and
// leaves first: windows are not known yet, so that no walk could stop at one, and a log may have a
// chain in any order. Each page is passed once for every branch behind it. Of the others only those
// that no walk passed have something to add: where one did, it went on to all before them.
void EngineBasics::LinkRecovered() {
  const std::vector<EntryId> parents = FindParents();
  for (const bool leaves : {true, false}) {
    for (EntryId id = 0; id < parents.size(); ++id) {
      const Entry& entry = index.at(id);
      if (!entry.live || (entry.children == 0) != leaves) continue;
      if (!leaves && entry.newest_end > OwnEnd(entry)) continue;
      TellAncestors(parents, id);
    }
  }
}

// Of all entries, and counts them there. In batches: many look-ups wait for memory at once.
std::vector<EntryId> EngineBasics::FindParents() {
  constexpr EntryId kBatch = 32;
  std::vector<EntryId> parents(index.scan_end(), kNoId);
  for (EntryId begin = 0; begin < parents.size(); begin += kBatch) {
    const EntryId end = std::min<EntryId>(begin + kBatch, index.scan_end());
    for (EntryId id = begin; id < end; ++id) index.PrefetchCell(index.at(id).parent_prefix);
    for (EntryId id = begin; id < end; ++id) index.PrefetchEntry(index.at(id).parent_prefix);
    for (EntryId id = begin; id < end; ++id) {
      const Entry& entry = index.at(id);
      if (!entry.live || entry.parent_prefix == 0) continue;
      parents[id] = index.FindPrefix(entry.parent_prefix);
      if (parents[id] == kNoId) {
        chains.AddGhostChild(entry.parent_prefix);
      } else {
        CountHint(&index.at(parents[id]).children, 1);
      }
    }
  }
  return parents;
}

// The page itself is not here. Its parent's prefix; 0: nothing is known of it, or it knew the end.
uint64_t EngineBasics::TellGhost(uint64_t prefix, uint32_t end) {
  Ghost* ghost = chains.FindGhost(prefix);
  if (ghost == nullptr || ghost->newest_end >= end) return 0;
  ghost->newest_end = end;
  return ghost->parent_prefix;
}

// Ends: a page that knows the end is not passed again.
void EngineBasics::TellAncestors(std::span<const EntryId> parents, EntryId id) {
  const uint32_t end = index.at(id).newest_end;
  while (parents[id] != kNoId) {
    id = parents[id];
    Entry& entry = index.at(id);
    if (entry.newest_end >= end) return;
    entry.newest_end = end;
  }
  // Before the first Poll no ghost has a parent.
  if (const uint64_t prefix = index.at(id).parent_prefix; prefix != 0) TellGhost(prefix, end);
}

void EngineBasics::GrowChain(uint64_t prefix, uint32_t end, uint32_t span) {
  for (uint32_t step = 0; step < kChainWalkMax && prefix != 0; ++step) {
    const EntryId id = index.FindPrefix(prefix);
    if (id == kNoId) {
      prefix = TellGhost(prefix, end);
      continue;
    }
    Entry& entry = index.at(id);
    const uint32_t known = entry.newest_end;
    if (known >= end) return;
    entry.newest_end = end;
    if (IsFresh(entry)) NoteGrowth(id, span);
    const bool position_known = entry.token_start != kTokenStartUnknown;
    if (position_known && IsPast(OwnEnd(entry), known, span)) return;
    prefix = entry.parent_prefix;
  }
}

// REQUIRES: the page is fresh.
void EngineBasics::NoteGrowth(EntryId id, uint32_t recent_tokens) {
  const Entry& entry = index.at(id);
  const PageId page = entry.place;
  if (chains.demotion(page) != kNoId || chains.queue(page) == FreshQueue::kDue) return;
  if (IsPast(OwnEnd(entry), entry.newest_end, recent_tokens)) {
    MakeDue(page, DemotionReason::kDescendant);
  } else {
    chains.Push(FreshQueue::kGrowing, page, now());
  }
}

void EngineBasics::MakeDue(PageId page, DemotionReason reason) {
  CRUMB_CHECK(pages[page].fresh && chains.demotion(page) == kNoId);
  chains.SetReason(page, reason);
  chains.Push(FreshQueue::kDue, page, now());
}

uint64_t EngineBasics::NextIdleUs() const {
  const PageId oldest = chains.front(FreshQueue::kGrowing);
  if (oldest == kNoId || options.fresh_idle_us == 0) return UINT64_MAX;
  return chains.queued_us(oldest) + options.fresh_idle_us;
}

bool EngineBasics::DemotionsWait() const {
  if (chains.size(FreshQueue::kDue) > 0) return true;
  for (uint32_t id = 0; id < demotions.size() && demotions.taken() > 0; ++id) {
    const DemotionStep step = demotions[id].step;
    const bool pending = ComesBack(step);
    if (demotions[id].used && !pending) return true;
  }
  return false;
}

bool EngineBasics::AllStuck() const {
  if (chains.size(FreshQueue::kDue) > 0 && demotions.free() > 0) return false;
  for (uint32_t id = 0; id < demotions.size() && demotions.taken() > 0; ++id) {
    if (demotions[id].used && !demotions[id].stuck) return false;
  }
  return true;
}

}  // namespace crumb::core
