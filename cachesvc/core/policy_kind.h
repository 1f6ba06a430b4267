// PolicyKind: which eviction policy a shard uses, as configured and as shown in status and metrics.
#ifndef CRUMB_CACHESVC_CORE_POLICY_KIND_H_
#define CRUMB_CACHESVC_CORE_POLICY_KIND_H_

#include <cstdint>

namespace crumb {

enum class PolicyKind : uint8_t { kS3Fifo, kLru };

constexpr const char* ToString(PolicyKind kind) {
  return kind == PolicyKind::kLru ? "lru" : "s3fifo";
}

}  // namespace crumb

#endif  // CRUMB_CACHESVC_CORE_POLICY_KIND_H_
