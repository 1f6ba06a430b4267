// What memory with an NVMe tier behind it would have hit of a trace, written to the tier and read
// from it, under the daemon's rules (nvme.admission, nvme.promotion). The tier is a log of records
// in the order of their writing, the oldest of which give way. Simulation only; one thread.
#ifndef CRUMB_CLIENT_CLI_REPLAY_TIERS_H_
#define CRUMB_CLIENT_CLI_REPLAY_TIERS_H_

#include <cstdint>

#include "cachesvc/core/nvme_rules.h"
#include "cachesvc/core/policy_kind.h"
#include "client/cli/replay_trace.h"

namespace crumb::cli {

struct TierRules {
  PolicyKind policy = PolicyKind::kS3Fifo;
  NvmeAdmission admission = NvmeAdmission::kAll;
  NvmePromotion promotion = NvmePromotion::kFirst;
  uint64_t dram_pages = 0, nvme_pages = 0;
};

struct TierResult {
  uint64_t reads = 0;                     // blocks asked for
  uint64_t dram_hits = 0, nvme_hits = 0;  // with all blocks in front of them
  uint64_t written = 0;                   // records; what is read is nvme_hits
  double Ratio(uint64_t hits) const {
    return reads == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(reads);
  }
};

// RESOURCE_EXHAUSTED if the kernel refuses memory for the policy.
absl::StatusOr<TierResult> ReplayTiers(const Trace& trace, const TierRules& rules);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_REPLAY_TIERS_H_
