// Chains: what is known of the sequences that pages belong to, beside the index: the order in which
// fresh pages grew old, by their numbers in memory; and ghosts: parents that pages name but that
// are not here (yet, or any more). Never touches pages or pools; decides nothing. One thread (the
// shard); nothing is allocated per call.
// INVARIANT: a page is in at most one of the two queues, and only while it is fresh.
#ifndef CRUMB_CACHESVC_CORE_CHAINS_H_
#define CRUMB_CACHESVC_CORE_CHAINS_H_

#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/engine_stats.h"
#include "cachesvc/core/index.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

// A page that others name as their parent and that has no entry.
struct Ghost {
  uint32_t newest_end = 0;
  uint32_t children = 0;
  uint64_t parent_prefix = 0;  // 0: not known
};

// Fresh pages in the order of their last growth, and those that are to be demoted, in the order in
// which that was found.
enum class FreshQueue : uint8_t { kNone = 0, kGrowing = 1, kDue = 2 };

class Chains {
 public:
  Chains() = default;
  static absl::StatusOr<Chains> Create(uint32_t entries_max, uint32_t pages_max);

  // A new entry: what its ghost knew is its own now.
  Ghost TakeGhost(uint64_t prefix);
  // An entry goes; where children name it, its ghost stays.
  void LeaveGhost(uint64_t prefix, const Ghost& left);
  // Null: not a ghost. Valid until the next call that changes ghosts.
  Ghost* FindGhost(uint64_t prefix);
  const Ghost* FindGhost(uint64_t prefix) const;
  // A page names `prefix`, which has no entry, as its parent; or does so no more.
  void AddGhostChild(uint64_t prefix);
  void DropGhostChild(uint64_t prefix);
  size_t ghosts() const { return ghosts_.size(); }

  // A page came to memory: in no queue, not under demotion.
  void Enter(PageId id);
  // Queues. Push puts it at the end, from wherever it is.
  void Push(FreshQueue queue, PageId id, uint64_t time_us);
  void Remove(PageId id);
  FreshQueue queue(PageId id) const { return nodes_[id].queue; }
  PageId front(FreshQueue queue) const { return List(queue).head; }
  uint32_t size(FreshQueue queue) const { return List(queue).size; }
  uint64_t queued_us(PageId id) const { return nodes_[id].queued_us; }

  uint32_t demotion(PageId id) const { return nodes_[id].demotion; }
  void SetDemotion(PageId id, uint32_t demotion) { nodes_[id].demotion = demotion; }
  DemotionReason reason(PageId id) const { return nodes_[id].reason; }
  void SetReason(PageId id, DemotionReason reason) { nodes_[id].reason = reason; }

 private:
  struct Node {
    uint64_t queued_us;
    PageId prev, next;
    uint32_t demotion;  // of the slab of demotions, or kNoId
    FreshQueue queue;
    DemotionReason reason;
  };
  struct Queue {
    PageId head = kNoId, tail = kNoId;
    uint32_t size = 0;
  };

  const Queue& List(FreshQueue queue) const { return queues_[static_cast<size_t>(queue) - 1]; }

  Arena memory_;
  std::span<Node> nodes_;
  Queue queues_[2];
  absl::flat_hash_map<uint64_t, Ghost> ghosts_;  // at most ghosts_max_: more are not noted
  size_t ghosts_max_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_CHAINS_H_
