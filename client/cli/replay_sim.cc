// Belady: evicts what is read again last. A block's next read is never before its parent's, so the
// optimum keeps prefixes whole by itself and no page is ever stranded.
#include "client/cli/replay_sim.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "cachesvc/core/eviction_policy.h"

namespace crumb::cli {
namespace {

// A key as the daemon's would look: the policy takes bits of it for a hash.
uint64_t KeyOf(uint32_t block) {
  uint64_t x = (uint64_t{block} + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// The engine's part around a policy: who is there, and how many children of each are.
class Cache {
 public:
  Cache(const Trace& trace, core::EvictionPolicy* policy, uint64_t pages)
      : trace_(trace),
        policy_(policy),
        pages_max_(pages),
        there_(trace.blocks(), false),
        children_(trace.blocks(), 0) {}

  bool Has(uint32_t block) const { return there_[block]; }
  void Put(uint32_t block) {
    while (pages_ >= pages_max_) {
      const core::EntryId victim = policy_->Victim(core::kAnyClass);
      if (victim == core::kNoId) return;
      policy_->Erase(victim, {.why = core::Leaving::kEvicted, .key = KeyOf(victim)});
      there_[victim] = false;
      --pages_;
      ++evictions_;
      CountChild(trace_.parents[victim], -1);
    }
    policy_->Insert(block, {.size_class = 1, .key = KeyOf(block)});
    there_[block] = true;
    ++pages_;
    if (children_[block] > 0) policy_->SetChildren(block, children_[block]);
    CountChild(trace_.parents[block], 1);
  }
  uint64_t evictions() const { return evictions_; }

 private:
  void CountChild(uint32_t parent, int change) {
    if (parent == Trace::kNoParent) return;
    children_[parent] = static_cast<uint32_t>(static_cast<int64_t>(children_[parent]) + change);
    if (there_[parent]) policy_->SetChildren(parent, children_[parent]);
  }

  const Trace& trace_;
  core::EvictionPolicy* policy_;
  const uint64_t pages_max_;
  uint64_t pages_ = 0, evictions_ = 0;
  std::vector<bool> there_;
  std::vector<uint32_t> children_;
};

}  // namespace

absl::StatusOr<ReplayResult> ReplayPolicy(const Trace& trace, PolicyKind kind, uint64_t pages) {
  ReplayResult result{.reads = trace.reads.size()};
  if (pages == 0) return result;
  CRUMB_ASSIGN(const auto policy, core::MakePolicy(kind, trace.blocks()));
  Cache cache(trace, policy.get(), pages);
  for (size_t i = 0; i < trace.request_ends.size(); ++i) {
    const std::span<const uint32_t> blocks = trace.request(i);
    size_t at = 0;
    for (; at < blocks.size() && cache.Has(blocks[at]); ++at) policy->Touch(blocks[at]);
    result.hits += at;
    for (; at < blocks.size(); ++at) {
      if (cache.Has(blocks[at])) {
        ++result.stranded;
      } else {
        cache.Put(blocks[at]);
      }
    }
  }
  result.evictions = cache.evictions();
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
