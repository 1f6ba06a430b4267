// Bounds: a page is spared at most once per use and passed over while held at most once per hold,
// so a search for a victim is O(1) amortised; kSparedMax bounds one call. Moving a page out of its
// queue when it becomes a parent is O(1), and so is its return.
#include "cachesvc/core/s3fifo_policy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {

// One page in so many belongs into the small queue. The paper's tenth suits web caches; sessions
// come back later than that, and a half is what the replayed traces want (docs/performance.md).
constexpr uint32_t kSmallShare = 2;
constexpr uint8_t kUsesMax = 3;
constexpr uint32_t kSparedMax = 256;  // per search
constexpr uint32_t kShelvesMax = std::numeric_limits<uint16_t>::max();

}  // namespace

absl::StatusOr<std::unique_ptr<S3FifoPolicy>> S3FifoPolicy::Create(uint32_t entries_max) {
  CRUMB_ASSIGN(GhostKeys ghosts, GhostKeys::Create(entries_max));
  CRUMB_ASSIGN(Arena memory, Arena::Map(uint64_t{entries_max} * sizeof(Node), HugePages::kNo));
  return std::unique_ptr<S3FifoPolicy>(
      new S3FifoPolicy(std::move(ghosts), std::move(memory), entries_max));
}

S3FifoPolicy::S3FifoPolicy(GhostKeys ghosts, Arena memory, uint32_t entries_max)
    : ghosts_(std::move(ghosts)),
      memory_(std::move(memory)),
      nodes_(reinterpret_cast<Node*>(memory_.bytes().data()), entries_max) {
  static_assert(sizeof(Node) == 16);
}

void S3FifoPolicy::LinkWarm(EntryId id, QueueName name) {
  Node& node = nodes_[id];
  Queue& queue = ShelfOf(node).queues[name];
  node.prev = kNoId;
  node.next = queue.head;
  node.tick = ++tick_;
  node.in = name;
  if (queue.head != kNoId) nodes_[queue.head].prev = id;
  queue.head = id;
  if (queue.tail == kNoId) queue.tail = id;
}

void S3FifoPolicy::LinkCold(EntryId id) {
  Node& node = nodes_[id];
  const QueueName name = node.parent ? kPrefixes : node.home;
  Queue& queue = ShelfOf(node).queues[name];
  node.next = kNoId;
  node.prev = queue.tail;
  node.in = name;
  if (queue.tail != kNoId) nodes_[queue.tail].next = id;
  queue.tail = id;
  if (queue.head == kNoId) queue.head = id;
}

void S3FifoPolicy::Unlink(EntryId id) {
  Node& node = nodes_[id];
  if (node.in == kNowhere) return;
  Queue& queue = ShelfOf(node).queues[node.in];
  (node.prev == kNoId ? queue.head : nodes_[node.prev].next) = node.next;
  (node.next == kNoId ? queue.tail : nodes_[node.next].prev) = node.prev;
  node.in = kNowhere;
}

void S3FifoPolicy::SetHome(Node& node, QueueName home) {
  --ShelfOf(node).members[node.home];
  node.home = home;
  ++ShelfOf(node).members[node.home];
}

void S3FifoPolicy::Insert(EntryId id, const PageIn& page) {
  Node& node = nodes_[id];
  CRUMB_CHECK(page.size_class != kAnyClass && node.shelf == 0);
  const uint32_t number = shelves_.Join(page.size_class);
  CRUMB_CHECK(number < kShelvesMax);
  node = Node{};
  node.shelf = static_cast<uint16_t>(number + 1);
  // As many keys are remembered as pages are in memory.
  node.home = ghosts_.Take(page.key, ++pages_) ? kMain : kSmall;
  ++ShelfOf(node).members[node.home];
  LinkWarm(id, node.home);
}

void S3FifoPolicy::Touch(EntryId id) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  if (node.uses < kUsesMax) ++node.uses;
  // A prefix does not wait at the cold end, so what it earned is given to it here.
  if (node.parent && node.home == kSmall) SetHome(node, kMain);
}

void S3FifoPolicy::Erase(EntryId id, const PageOut& page) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  Unlink(id);
  const bool missed = page.why == Leaving::kEvicted && node.home == kSmall;
  if (missed || page.why == Leaving::kReplaced) ghosts_.Add(page.key);
  --ShelfOf(node).members[node.home];
  shelves_.Leave(node.shelf - 1u);
  --pages_;
  node = Node{};
}

void S3FifoPolicy::SetChildren(EntryId id, uint32_t count) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  const bool parent = count > 0;
  if (node.parent == parent) return;
  node.parent = parent;
  if (node.in == kNowhere) return;
  Unlink(id);
  parent ? LinkWarm(id, kPrefixes) : LinkCold(id);
}

void S3FifoPolicy::Hold(EntryId id) {
  CRUMB_CHECK(nodes_[id].shelf != 0);
  nodes_[id].held = true;
}

void S3FifoPolicy::Unhold(EntryId id) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  if (!node.held) return;
  node.held = false;
  if (node.in == kNowhere) LinkCold(id);
}

// The coldest page of the queue that nobody holds; those in front of it go aside until released.
EntryId S3FifoPolicy::FirstFree(Queue& queue) {
  while (queue.tail != kNoId && nodes_[queue.tail].held) Unlink(queue.tail);
  return queue.tail;
}

EntryId S3FifoPolicy::VictimOf(Shelf& shelf) {
  for (uint32_t spared = 0;;) {
    const EntryId fresh = FirstFree(shelf.queues[kSmall]);
    const EntryId old = FirstFree(shelf.queues[kMain]);
    if (fresh == kNoId && old == kNoId) return FirstFree(shelf.queues[kPrefixes]);
    const uint64_t small = shelf.members[kSmall];
    const bool small_is_large = small * kSmallShare >= small + shelf.members[kMain];
    const EntryId id = old == kNoId || (fresh != kNoId && small_is_large) ? fresh : old;
    Node& node = nodes_[id];
    if (node.uses == 0 || spared == kSparedMax) return id;
    ++spared;
    Unlink(id);
    if (id == fresh) {
      SetHome(node, kMain);
      node.uses = 0;
    } else {
      --node.uses;
    }
    LinkWarm(id, kMain);
  }
}

EntryId S3FifoPolicy::Victim(uint32_t size_class) {
  if (size_class != kAnyClass) {
    const uint32_t number = shelves_.Find(size_class);
    return number == shelves_.kNone ? kNoId : VictimOf(shelves_[number]);
  }
  EntryId oldest = kNoId;
  for (uint32_t number = 0; number < shelves_.end(); ++number) {
    if (!shelves_.used(number)) continue;
    const EntryId id = VictimOf(shelves_[number]);
    if (id == kNoId) continue;
    // Ticks wrap: compare by distance from now.
    if (oldest == kNoId || tick_ - nodes_[id].tick > tick_ - nodes_[oldest].tick) oldest = id;
  }
  return oldest;
}

}  // namespace crumb::core
