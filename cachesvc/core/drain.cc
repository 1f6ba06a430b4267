// drain: new requests are refused; what is in flight ends; fresh pages are demoted; pages that only
// live in memory are offered to NVMe, unless that is switched off; then, or at the deadline, `done`
// runs. The engine stays drained.
#include "cachesvc/core/engine_impl.h"

namespace crumb::core {

void EngineImpl::StartDrain(uint64_t deadline_us, std::function<void()> done) {
  draining = true;
  while (!parked.empty()) Finish(blocks[parked.front()], BlockResult::kUnavailable);
  drain = {.active = true, .deadline_us = deadline_us, .done = std::move(done)};
}

int EngineImpl::RunDrain() {
  if (!drain.active) return 0;
  bool ended = now() >= drain.deadline_us;
  if (!ended && blocks.taken() == 0 && requests.taken() == 0) {
    while (chains.front(FreshQueue::kGrowing) != kNoId) {
      MakeDue(chains.front(FreshQueue::kGrowing), DemotionReason::kDrain);
    }
    // Those that find no slot are forgotten with the process: only final pages go to the disk.
    const bool demoting = chains.size(FreshQueue::kDue) + demotions.taken() > 0 && !AllStuck();
    if (demoting) return 0;
    const bool saves = log != nullptr && options.disk.save;
    while (has_hbm() && saves && drain.hbm_cursor < index.scan_end()) {
      const Entry& entry = index.at(drain.hbm_cursor);
      const bool only_there = entry.live && entry.in_hbm() && !entry.on_disk();
      if (only_there && StartMove(drain.hbm_cursor, false, {}) == kNoId) return 0;
      ++drain.hbm_cursor;
    }
    if (moves.taken() > 0) return 0;
    while (saves && drain.cursor < index.scan_end()) {
      const Entry& entry = index.at(drain.cursor);
      const bool only_here = entry.live && entry.in_memory() && !entry.on_disk() && !IsFresh(entry);
      if (only_here && AppendOf(entry) == kNoId && !MayWriteSpare()) {
        ++counts.unsaved_over_budget;
      } else if (only_here && AppendOf(entry) == kNoId) {
        const BlockResult result = StartAppend(drain.cursor, false, false);
        if (result == BlockResult::kBusy) return 0;
      }
      ++drain.cursor;
    }
    ended = appends.taken() == 0 && forgets.empty();
  }
  if (!ended) return 0;
  drain.active = false;
  const std::function<void()> done = std::move(drain.done);
  drain.done = nullptr;
  if (done) done();
  return 1;
}

}  // namespace crumb::core
