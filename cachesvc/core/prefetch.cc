// prefetch: pages that will be asked for soon, raised from NVMe to memory ahead of the get. Joins
// the read that is under way for a page, if there is one. Must never cost what is hotter: room is
// taken free, or from the policy's coldest page of the same size class; other classes are never
// cleared for it, one prefetched page never displaces another, and what was raised by eviction and
// not yet got stays below a quarter of the pool. The answer says where each page is now.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {
namespace {

constexpr int kEvictionsPerPrefetch = 4;  // dropped at once for one page
constexpr uint64_t kPoolShare = 4;        // 1 / share of the pool for pages not yet got

// A prefetch promises what a get of the raw page would find.
bool CanPrefetch(const Block& block, const PageKind& kind, uint32_t token_count) {
  if (block.wire.token_count != 0 && block.wire.token_count != token_count) return false;
  return block.binding->FindReader(block.wire.part, kind.codec_id) != nullptr;
}

}  // namespace

bool EngineImpl::PrefetchStart(Block& block) {
  EntryId id = kNoId;
  if (FindLive(block.key, &id) != Live::kYes ||
      index.kind(id).lossy_depth > options.max_lossy_depth ||
      !CanPrefetch(block, index.kind(id), index.at(id).token_count)) {
    block.reply = {};
    return EndPrefetch(block, BlockResult::kMiss);
  }
  const Entry& entry = index.at(id);
  const PageKind& kind = index.kind(id);
  block.reply = {.tier = entry.tier(),
                 .precision = kind.precision,
                 .lossy_depth = kind.lossy_depth,
                 .value_bytes = kind.raw_bytes};
  if (entry.resident()) {
    TouchPage(entry);
    return EndPrefetch(block, BlockResult::kOk);
  }
  if (entry.read() != kNoId) {
    ReleasePage(block);
    Wait(reads[entry.read()].waiters, block);
    return false;
  }
  if (log == nullptr) return EndPrefetch(block, BlockResult::kMiss);
  if (prefetches >= options.limits.prefetches_max) {
    ReleasePage(block);
    Wait(prefetch_wait, block);
    return false;
  }
  return PrefetchRead(block, id);
}

bool EngineImpl::PrefetchRead(Block& block, EntryId id) {
  const uint64_t record_bytes = index.kind(id).slot_bytes();
  if (block.page_owned && pool().memory(block.page).size() != PagePool::ClassBytes(record_bytes)) {
    ReleasePage(block);  // another image took the place of the one it was meant for
  }
  if (!block.page_owned) {
    switch (AcquireColdSlot(block, record_bytes)) {
      case Grant::kGot:
        return true;  // the world may have changed while the block waited: look again
      case Grant::kWait:
        return false;
      case Grant::kNever:
        ++counts.promotions_rejected;
        return EndPrefetch(block, BlockResult::kNoSpace);
    }
  }
  const BlockResult result = StartRead(id, block.page, nullptr);
  if (result == BlockResult::kBusy) return Wait(disk_wait, block), false;
  if (result != BlockResult::kOk) {
    ForgetPage(id);
    block.reply = {};
    return EndPrefetch(block, BlockResult::kMiss);
  }
  ++prefetches;
  reads[index.at(id).read()].prefetch = true;
  block.page_owned = false;
  --transient_slots;
  block.page = {};
  Wait(reads[index.at(id).read()].waiters, block);
  return false;
}

// Always false: the block does not go on.
bool EngineImpl::EndPrefetch(Block& block, BlockResult result) {
  EndPhase(block, Phase::kQueue);
  Finish(block, result);
  return false;
}

Grant EngineImpl::AcquireColdSlot(Block& block, uint64_t bytes) {
  if (!pool().CanEverFit(bytes)) return Grant::kNever;
  // Whoever waits for a slot has a worker that waits for it: a prefetch comes after.
  if (slot_wait.empty()) {
    for (int i = 0; i <= kEvictionsPerPrefetch; ++i) {
      if (const SlotId slot = pool().Allocate(bytes); slot.valid()) {
        block.page = slot;
        block.page_owned = true;
        ++transient_slots;
        return Grant::kGot;
      }
      const uint64_t others = prefetch_wait.size() + prefetches;
      if (prefetched_bytes + (others + 1) * bytes > pool().capacity_bytes() / kPoolShare) {
        return Grant::kNever;
      }
      if (evictions > prefetch_wait.size()) break;  // one is under way for each that waits
      const auto size_class = static_cast<uint32_t>(PagePool::ClassBytes(bytes) / kPageAlignment);
      const PageId victim = policy->Victim(size_class);
      if (victim == kNoId || pages[victim].prefetched) return Grant::kNever;
      if (EvictOne(pages[victim].entry) != Grant::kGot) break;
    }
  }
  Wait(prefetch_wait, block);
  return Grant::kWait;
}

void EngineImpl::NotePrefetched(EntryId id) {
  Resident& page = PageOf(index.at(id));
  page.prefetched = true;
  prefetched_bytes += pool().memory(page.slot).size();
}

// It was got, or it leaves memory.
void EngineBasics::ForgetPrefetched(EntryId id) {
  Resident& page = PageOf(index.at(id));
  if (!page.prefetched) return;
  page.prefetched = false;
  prefetched_bytes -= pool().memory(page.slot).size();
}

}  // namespace crumb::core
