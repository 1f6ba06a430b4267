// S3FifoPolicy: three FIFO queues per size class. New pages enter a small queue; what was used
// there moves to the main queue, the rest is evicted early and remembered by key, so that a page
// that comes back enters the main queue at once. One-time pages thus never push out what is reused.
// (J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.)
// Prefixes: a page with children in memory is out of its queue and comes back at the cold end when
// the last child has left; it is a victim only where its class has nothing else. One thread (the
// shard).
#ifndef CRUMB_CACHESVC_CORE_S3FIFO_POLICY_H_
#define CRUMB_CACHESVC_CORE_S3FIFO_POLICY_H_

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

class S3FifoPolicy final : public EvictionPolicy {
 public:
  static absl::StatusOr<std::unique_ptr<S3FifoPolicy>> Create(uint32_t entries_max);

  void Insert(EntryId id, const PageIn& page) override;
  void Touch(EntryId id) override;
  void Erase(EntryId id, const PageOut& page) override;
  void SetChildren(EntryId id, uint32_t count) override;
  void Hold(EntryId id) override;
  void Unhold(EntryId id) override;
  EntryId Victim(uint32_t size_class) override;

 private:
  enum QueueName : uint8_t { kSmall = 0, kMain = 1, kPrefixes = 2, kNowhere = 3 };
  struct Node {  // all zero = not in memory
    uint32_t prev, next;
    uint32_t tick;       // when it was last put at the warm end of a queue
    uint16_t shelf;      // its class' number + 1
    QueueName home : 2;  // kSmall or kMain: the queue it belongs to
    QueueName in : 2;    // the queue it is linked into; kNowhere: held, and passed over since
    uint8_t uses : 2;    // since it came or was last spared
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

  S3FifoPolicy(GhostKeys ghosts, Arena memory, uint32_t entries_max);
  Shelf& ShelfOf(const Node& node) { return shelves_[node.shelf - 1u]; }
  void LinkWarm(EntryId id, QueueName queue);
  void LinkCold(EntryId id);  // where it belongs by its flags
  void Unlink(EntryId id);
  void SetHome(Node& node, QueueName home);
  EntryId VictimOf(Shelf& shelf);
  EntryId FirstFree(Queue& queue);

  GhostKeys ghosts_;
  Arena memory_;
  std::span<Node> nodes_;
  SizeClasses<Shelf> shelves_;
  uint32_t tick_ = 0;
  uint32_t pages_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_S3FIFO_POLICY_H_
