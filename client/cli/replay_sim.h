// What a cache of so many pages would have hit of a trace: the daemon's own eviction policies, and
// Belady's optimum, which knows the future. Simulation only; one thread.
#ifndef CRUMB_CLIENT_CLI_REPLAY_SIM_H_
#define CRUMB_CLIENT_CLI_REPLAY_SIM_H_

#include <cstdint>

#include "cachesvc/core/policy_kind.h"
#include "client/cli/replay_trace.h"

namespace crumb::cli {

struct ReplayResult {
  uint64_t reads = 0;     // blocks asked for
  uint64_t hits = 0;      // in the cache with all blocks in front of them: what an engine can use
  uint64_t stranded = 0;  // in the cache behind a gap
  uint64_t evictions = 0;
  double ratio() const {
    return reads == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(reads);
  }
};

// Each request gets the longest prefix that is there and puts the rest.
// RESOURCE_EXHAUSTED if the kernel refuses memory for the policy.
absl::StatusOr<ReplayResult> ReplayPolicy(const Trace& trace, PolicyKind kind, uint64_t pages);
ReplayResult ReplayBelady(const Trace& trace, uint64_t pages);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_REPLAY_SIM_H_
