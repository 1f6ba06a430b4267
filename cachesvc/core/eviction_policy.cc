// The policies by name. Start-up only; any thread.
#include "cachesvc/core/eviction_policy.h"

#include "cachesvc/core/queue_policy.h"

namespace crumb::core {

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(PolicyKind kind, uint32_t pages_max) {
  return QueuePolicy::Create(kind, pages_max);
}

}  // namespace crumb::core
