// The policies by name. Start-up only; any thread.
#include "cachesvc/core/eviction_policy.h"

#include "cachesvc/core/lru_policy.h"
#include "cachesvc/core/s3fifo_policy.h"

namespace crumb::core {

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(PolicyKind kind, uint32_t entries_max) {
  if (kind == PolicyKind::kLru) return LruPolicy::Create(entries_max);
  return S3FifoPolicy::Create(entries_max);
}

}  // namespace crumb::core
