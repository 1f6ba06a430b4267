// The engine's part around an eviction policy, simulated: which blocks are in memory, and how many
// children of each are. Simulation only; one thread.
#ifndef CRUMB_CLIENT_CLI_REPLAY_CACHE_H_
#define CRUMB_CLIENT_CLI_REPLAY_CACHE_H_

#include <cstdint>
#include <vector>

#include "cachesvc/core/eviction_policy.h"
#include "client/cli/replay_trace.h"

namespace crumb::cli {

// A key as the daemon's would look: the policy takes bits of it for a hash.
inline uint64_t ReplayKeyOf(uint32_t block) {
  uint64_t x = (uint64_t{block} + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

class ReplayCache {
 public:
  static constexpr uint32_t kNone = core::kNoId;

  ReplayCache(const Trace& trace, core::EvictionPolicy* policy, uint64_t pages)
      : trace_(trace),
        policy_(policy),
        pages_max_(pages),
        there_(trace.blocks(), false),
        children_(trace.blocks(), 0) {}

  bool Has(uint32_t block) const { return there_[block]; }
  bool full() const { return pages_ >= pages_max_; }
  void Touch(uint32_t block) { policy_->Touch(block); }
  // The block that left; kNone: nothing could.
  uint32_t Evict() {
    const core::PageId victim = policy_->Victim(core::kAnyClass);
    if (victim == core::kNoId) return kNone;
    policy_->Erase(victim, {.why = core::Leaving::kEvicted, .key = ReplayKeyOf(victim)});
    there_[victim] = false;
    --pages_;
    CountChild(trace_.parents[victim], -1);
    return victim;
  }
  // REQUIRES: it is not there, and there is room.
  void Put(uint32_t block) {
    policy_->Insert(block, {.size_class = 1, .key = ReplayKeyOf(block)});
    there_[block] = true;
    ++pages_;
    if (children_[block] > 0) policy_->SetChildren(block, children_[block]);
    CountChild(trace_.parents[block], 1);
  }

 private:
  void CountChild(uint32_t parent, int change) {
    if (parent == Trace::kNoParent) return;
    children_[parent] = static_cast<uint32_t>(static_cast<int64_t>(children_[parent]) + change);
    if (there_[parent]) policy_->SetChildren(parent, children_[parent]);
  }

  const Trace& trace_;
  core::EvictionPolicy* policy_;
  const uint64_t pages_max_;
  uint64_t pages_ = 0;
  std::vector<bool> there_;
  std::vector<uint32_t> children_;
};

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_REPLAY_CACHE_H_
