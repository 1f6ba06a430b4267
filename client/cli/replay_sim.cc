// Belady: evicts what is read again last. A block's next read is never before its parent's, so the
// optimum keeps prefixes whole by itself and no page is ever stranded.
#include "client/cli/replay_sim.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "client/cli/replay_cache.h"

namespace crumb::cli {

absl::StatusOr<ReplayResult> ReplayPolicy(const Trace& trace, PolicyKind kind, uint64_t pages) {
  ReplayResult result{.reads = trace.reads.size()};
  if (pages == 0) return result;
  CRUMB_ASSIGN(const auto policy, core::MakePolicy(kind, trace.blocks()));
  ReplayCache cache(trace, policy.get(), pages);
  for (size_t i = 0; i < trace.request_ends.size(); ++i) {
    const std::span<const uint32_t> blocks = trace.request(i);
    size_t at = 0;
    for (; at < blocks.size() && cache.Has(blocks[at]); ++at) cache.Touch(blocks[at]);
    result.hits += at;
    for (; at < blocks.size(); ++at) {
      if (cache.Has(blocks[at])) {
        ++result.stranded;
        continue;
      }
      if (cache.full()) result.evictions += cache.Evict() != ReplayCache::kNone;
      if (!cache.full()) cache.Put(blocks[at]);
    }
  }
  return result;
}

ReplayResult ReplayBelady(const Trace& trace, uint64_t pages) {
  ReplayResult result{.reads = trace.reads.size()};
  if (pages == 0) return result;
  constexpr uint32_t kNever = 0xffffffff;
  std::vector<uint32_t> next_read(trace.reads.size(), kNever);
  std::vector<uint32_t> seen(trace.blocks(), kNever);
  for (size_t i = trace.reads.size(); i-- > 0;) {
    next_read[i] = std::exchange(seen[trace.reads[i]], static_cast<uint32_t>(i));
  }
  std::vector<uint32_t> next_of(trace.blocks(), 0);
  std::vector<bool> there(trace.blocks(), false);
  std::priority_queue<std::pair<uint32_t, uint32_t>> last_first;  // next read, block; may be stale
  uint64_t count = 0;
  for (size_t i = 0; i < trace.reads.size(); ++i) {
    const uint32_t block = trace.reads[i];
    next_of[block] = next_read[i];
    if (there[block]) {
      ++result.hits;
    } else {
      there[block] = true;
      ++count;
    }
    last_first.emplace(next_of[block], block);
    while (count > pages) {
      const auto [next, victim] = last_first.top();
      last_first.pop();
      if (!there[victim] || next_of[victim] != next) continue;
      there[victim] = false;
      --count;
      ++result.evictions;
    }
  }
  return result;
}

}  // namespace crumb::cli
