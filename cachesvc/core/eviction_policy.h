// EvictionPolicy: which page in memory goes first. Pure: it knows ids, size classes and hints, and
// never touches pages, pools or disks. Implementations: lru_policy; S3-FIFO has the same shape.
// One thread (the shard); no allocation per call.
#ifndef CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_
#define CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_

#include <cstdint>

#include "cachesvc/core/index.h"

namespace crumb::core {

inline constexpr uint32_t kAnyClass = 0;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A page came into memory. size_class: bytes of its slot / kPageAlignment, > 0.
  virtual void Insert(EntryId id, uint32_t size_class) = 0;
  // A get was served from it. (Look-ups do not touch: probes keep nothing alive.)
  virtual void Touch(EntryId id) = 0;
  // It left memory. History kept beyond that is the policy's own affair.
  virtual void Erase(EntryId id) = 0;
  // Hint: other pages name it as their parent (count > 0) or none does any more.
  virtual void SetChildren(EntryId id, uint32_t count) = 0;
  // Held pages are no candidates (pinned, or being written); their place and history stay.
  virtual void Hold(EntryId id) = 0;
  virtual void Unhold(EntryId id) = 0;
  // The page to evict next, leaves before prefixes where that is known; kNoId if none. Does not
  // remove it. kAnyClass: of any size class.
  virtual EntryId Victim(uint32_t size_class) const = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_EVICTION_POLICY_H_
