// QueuePolicy: queues in order of last use, per size class. Two kinds of it:
// kS3Fifo: S3-FIFO's small queue, main queue and ghosts (J. Yang et al., "FIFO queues are all you
// need for cache eviction", SOSP 2023). New pages enter the small queue; what is used there moves
// to the main queue, and so does a page that comes back soon after it was evicted. The oldest of
// both goes first, but one of the small queue while that has most of the memory: pages that are
// used once do not push out what is reused. WHY in order of use and not of coming, and why so large
// a small queue: docs/performance.md, the replayed traces want both. kLru: there is no small queue:
// least recently used first. Prefixes: a page with children in memory is out of its queue and comes
// back at the cold end when the last child has left; it is a victim only where its class has
// nothing else. One thread (the shard).
#ifndef CRUMB_CACHESVC_CORE_QUEUE_POLICY_H_
#define CRUMB_CACHESVC_CORE_QUEUE_POLICY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "cachesvc/base/status.h"
#include "cachesvc/core/eviction_policy.h"
#include "cachesvc/core/ghost_keys.h"
#include "cachesvc/core/size_classes.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

class QueuePolicy final : public EvictionPolicy {
 public:
  static absl::StatusOr<std::unique_ptr<QueuePolicy>> Create(PolicyKind kind, uint32_t pages_max);

  void Insert(PageId id, const PageIn& page) override;
  void Touch(PageId id) override;
  void Erase(PageId id, const PageOut& page) override;
  void SetChildren(PageId id, uint32_t count) override;
  void Hold(PageId id) override;
  void Unhold(PageId id) override;
  PageId Victim(uint32_t size_class) override;

 private:
  enum QueueName : uint8_t { kSmall = 0, kMain = 1, kPrefixes = 2, kNowhere = 3 };
  struct Node {  // all zero = not in memory
    uint32_t prev, next;
    uint32_t tick;       // of its last use
    uint16_t shelf;      // its class' number + 1
    QueueName home : 2;  // kSmall or kMain: the queue it belongs to
    QueueName in : 2;  // the queue it is linked into; kNowhere: held, and passed over since its use
    uint8_t held : 1;
    uint8_t parent : 1;
  };
  struct Queue {
    uint32_t head = kNoId, tail = kNoId;  // the tail is the cold end
  };
  struct Shelf {  // what a class has
    std::array<Queue, 3> queues{};
    std::array<uint32_t, 2> members{};  // by home, linked or not
  };

  QueuePolicy(PolicyKind kind, GhostKeys ghosts, Arena memory, uint32_t pages_max);
  Shelf& ShelfOf(const Node& node) { return shelves_[node.shelf - 1u]; }
  static QueueName PlaceOf(const Node& node) { return node.parent ? kPrefixes : node.home; }
  void LinkWarm(PageId id);
  void LinkCold(PageId id);
  void Unlink(PageId id);
  uint32_t Age(PageId id) const { return tick_ - nodes_[id].tick; }  // ticks wrap
  PageId VictimOf(Shelf& shelf);
  PageId FirstFree(Queue& queue);

  const PolicyKind kind_;
  GhostKeys ghosts_;
  Arena memory_;
  std::span<Node> nodes_;
  SizeClasses<Shelf> shelves_;
  uint32_t tick_ = 0;
  uint32_t pages_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_QUEUE_POLICY_H_
