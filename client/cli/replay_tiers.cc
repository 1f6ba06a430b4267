// The same steps as core/slots.cc (EvictOne) and core/get.cc (StaysOnNvme), on block numbers.
#include "client/cli/replay_tiers.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "cachesvc/core/ghost_keys.h"
#include "client/cli/replay_cache.h"

namespace crumb::cli {
namespace {

// Records in the order of their writing; the oldest give way.
class NvmeLog {
 public:
  NvmeLog(uint32_t blocks, uint64_t pages) : record_of_(blocks, 0), pages_max_(pages) {}

  bool Has(uint32_t block) const { return record_of_[block] != 0; }
  void Write(uint32_t block) {
    ++written_;
    if (pages_max_ == 0) return;
    if (records_.size() == pages_max_) {
      const auto [oldest, number] = records_.front();
      records_.pop_front();
      if (record_of_[oldest] == number) record_of_[oldest] = 0;
    }
    records_.emplace_back(block, written_);
    record_of_[block] = written_;
  }
  uint64_t written() const { return written_; }

 private:
  std::vector<uint64_t> record_of_;  // by block: its record's number, or 0
  std::deque<std::pair<uint32_t, uint64_t>> records_;
  const uint64_t pages_max_;
  uint64_t written_ = 0;
};

class Tiers {
 public:
  Tiers(const Trace& trace, const TierRules& rules, core::EvictionPolicy* policy,
        core::GhostKeys seen)
      : rules_(rules),
        cache_(trace, policy, rules.dram_pages),
        log_(trace.blocks(), rules.nvme_pages),
        seen_(std::move(seen)),
        got_(trace.blocks(), false) {}

  void Request(std::span<const uint32_t> blocks, TierResult* result) {
    size_t at = 0;
    for (; at < blocks.size() && Get(blocks[at], result); ++at) continue;
    for (; at < blocks.size(); ++at) {
      const uint32_t block = blocks[at];
      if (cache_.Has(block) || log_.Has(block)) continue;
      const bool back = rules_.admission == NvmeAdmission::kSeen && SeenLately(block);
      Raise(block);
      got_[block] = back;
    }
  }
  uint64_t written() const { return log_.written(); }

 private:
  bool Get(uint32_t block, TierResult* result) {
    if (!cache_.Has(block)) {
      if (!log_.Has(block)) return false;
      ++result->nvme_hits;
      const bool raise =
          rules_.promotion == NvmePromotion::kFirst || !cache_.full() || SeenLately(block);
      if (!raise) {
        seen_.Add(ReplayKeyOf(block));
        return true;
      }
      Raise(block);
    } else {
      ++result->dram_hits;
    }
    if (cache_.Has(block)) cache_.Touch(block);
    got_[block] = true;
    return true;
  }

  void Raise(uint32_t block) {
    if (cache_.full()) {
      const uint32_t victim = cache_.Evict();
      if (victim == ReplayCache::kNone) return;
      if (!log_.Has(victim)) Leave(victim);
    }
    cache_.Put(block);
  }
  void Leave(uint32_t block) {
    if (rules_.admission == NvmeAdmission::kAll || got_[block]) return log_.Write(block);
    seen_.Add(ReplayKeyOf(block));
  }
  bool SeenLately(uint32_t block) {
    const uint64_t window = std::min<uint64_t>(kSeenWindow * rules_.dram_pages, UINT32_MAX);
    return seen_.Take(ReplayKeyOf(block), static_cast<uint32_t>(window));
  }

  const TierRules rules_;
  ReplayCache cache_;
  NvmeLog log_;
  core::GhostKeys seen_;
  std::vector<bool> got_;  // since it came to memory
};

}  // namespace

absl::StatusOr<TierResult> ReplayTiers(const Trace& trace, const TierRules& rules) {
  TierResult result{.reads = trace.reads.size()};
  if (rules.dram_pages == 0) return result;
  CRUMB_ASSIGN(const auto policy, core::MakePolicy(rules.policy, trace.blocks()));
  const uint64_t keys = std::min<uint64_t>(kSeenWindow * rules.dram_pages, 1u << 31);
  CRUMB_ASSIGN(core::GhostKeys seen, core::GhostKeys::Create(static_cast<uint32_t>(keys)));
  Tiers tiers(trace, rules, policy.get(), std::move(seen));
  for (size_t i = 0; i < trace.request_ends.size(); ++i) tiers.Request(trace.request(i), &result);
  result.written = tiers.written();
  return result;
}

}  // namespace crumb::cli
