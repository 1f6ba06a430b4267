// LruPolicy: least recently used first, one list per size class; near the cold end a leaf goes
// before a page with children. Simple on purpose; S3-FIFO takes its place behind the same seam.
// One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_LRU_POLICY_H_
#define CRUMB_CACHESVC_CORE_LRU_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/eviction_policy.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

class LruPolicy final : public EvictionPolicy {
 public:
  static absl::StatusOr<std::unique_ptr<LruPolicy>> Create(uint32_t entries_max);

  void Insert(EntryId id, uint32_t size_class) override;
  void Touch(EntryId id) override;
  void Erase(EntryId id) override;
  void SetChildren(EntryId id, uint32_t count) override;
  void Hold(EntryId id) override;
  void Unhold(EntryId id) override;
  EntryId Victim(uint32_t size_class) const override;

 private:
  struct Node {  // zero = absent
    uint32_t prev, next;
    uint32_t list;  // index into lists_ + 1; 0 = not in memory
    uint32_t tick;  // of the last touch
    bool held;
    bool parent;
  };
  struct List {
    uint32_t size_class = 0;
    uint32_t head = kNoId, tail = kNoId;  // head: most recent
    uint32_t members = 0;                 // held ones too
  };

  LruPolicy() = default;
  void Link(EntryId id);
  void Unlink(EntryId id);
  EntryId VictimOf(const List& list) const;

  Arena memory_;
  std::span<Node> nodes_;
  std::vector<List> lists_;
  std::vector<uint32_t> free_lists_;
  absl::flat_hash_map<uint32_t, uint32_t> list_of_class_;
  uint32_t tick_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_LRU_POLICY_H_
