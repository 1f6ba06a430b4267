// EvictionPolicy: which page in memory goes first. Pure: it knows ids, size classes, keys and
// hints, and never touches pages, pools or disks. queue_policy makes them all. One thread (the
// shard); no allocation per call, O(1) amortised.
#ifndef CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_
#define CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "cachesvc/core/index.h"
#include "cachesvc/core/policy_kind.h"

namespace crumb::core {

inline constexpr uint32_t kAnyClass = 0;

// What a policy learns of a page that comes.
struct PageIn {
  uint32_t size_class = 0;  // bytes of its slot / kPageAlignment, > 0
  uint64_t key = 0;         // BlockKey::prefix64: a page that comes back is known by it
};

// Why a page leaves memory: deleted, flushed or found bad; as a victim, which may be missed; for
// another image of it, which comes at once.
enum class Leaving : uint8_t { kGone, kEvicted, kReplaced };

// What a policy learns of a page that leaves.
struct PageOut {
  Leaving why = Leaving::kGone;
  uint64_t key = 0;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A page came into memory.
  virtual void Insert(PageId id, const PageIn& page) = 0;
  // A get was served from it. (Look-ups do not touch: probes keep nothing alive.)
  virtual void Touch(PageId id) = 0;
  // It left memory. What may come back is remembered by its key.
  virtual void Erase(PageId id, const PageOut& page) = 0;
  // Hint: pages in memory name it as their parent (count > 0) or none does any more.
  virtual void SetChildren(PageId id, uint32_t count) = 0;
  // Held pages are no candidates (pinned, or being written); their place and history stay.
  virtual void Hold(PageId id) = 0;
  virtual void Unhold(PageId id) = 0;
  // The page to evict next, leaves before prefixes where that is known; kNoId if none. Does not
  // remove it; asked again with nothing changed, it says the same. kAnyClass: of any size class.
  virtual PageId Victim(uint32_t size_class) = 0;
};

// RESOURCE_EXHAUSTED if the kernel refuses the memory.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakePolicy(PolicyKind kind, uint32_t pages_max);

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_
