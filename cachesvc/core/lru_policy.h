// LruPolicy: least recently used first, one list per size class; near the cold end a leaf goes
// before a page with children. The baseline that others are measured against. One thread (the
// shard).
#ifndef CRUMB_CACHESVC_CORE_LRU_POLICY_H_
#define CRUMB_CACHESVC_CORE_LRU_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>

#include "cachesvc/base/status.h"
#include "cachesvc/core/eviction_policy.h"
#include "cachesvc/core/size_classes.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

class LruPolicy final : public EvictionPolicy {
 public:
  static absl::StatusOr<std::unique_ptr<LruPolicy>> Create(uint32_t entries_max);

  void Insert(EntryId id, const PageIn& page) override;
  void Touch(EntryId id) override;
  void Erase(EntryId id, const PageOut& page) override;
  void SetChildren(EntryId id, uint32_t count) override;
  void Hold(EntryId id) override;
  void Unhold(EntryId id) override;
  EntryId Victim(uint32_t size_class) override;

 private:
  struct Node {  // zero = absent
    uint32_t prev, next;
    uint32_t list;  // its class' number + 1; 0 = not in memory
    uint32_t tick;  // of the last touch
    bool held;
    bool parent;
  };
  struct List {
    uint32_t head = kNoId, tail = kNoId;  // head: most recent
  };

  LruPolicy() = default;
  void Link(EntryId id);
  void Unlink(EntryId id);
  EntryId VictimOf(const List& list) const;

  Arena memory_;
  std::span<Node> nodes_;
  SizeClasses<List> lists_;
  uint32_t tick_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_LRU_POLICY_H_
