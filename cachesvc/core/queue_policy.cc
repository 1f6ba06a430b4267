// Bounds: everything is O(1), but for the held pages that a search for a victim passes over, each
// at most once per hold.
#include "cachesvc/core/queue_policy.h"

#include <limits>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {

// The small queue's share of a class, from which on its pages go first.
constexpr uint64_t kSmallFifths = 4;
constexpr uint32_t kShelvesMax = std::numeric_limits<uint16_t>::max();

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePolicy>> QueuePolicy::Create(PolicyKind kind,
                                                                 uint32_t pages_max) {
  const bool remembers = kind == PolicyKind::kS3Fifo;
  CRUMB_ASSIGN(GhostKeys ghosts, GhostKeys::Create(remembers ? pages_max : 1));
  CRUMB_ASSIGN(Arena memory, Arena::Map(uint64_t{pages_max} * sizeof(Node), HugePages::kNo));
  return std::unique_ptr<QueuePolicy>(
      new QueuePolicy(kind, std::move(ghosts), std::move(memory), pages_max));
}

QueuePolicy::QueuePolicy(PolicyKind kind, GhostKeys ghosts, Arena memory, uint32_t pages_max)
    : kind_(kind),
      ghosts_(std::move(ghosts)),
      memory_(std::move(memory)),
      nodes_(reinterpret_cast<Node*>(memory_.bytes().data()), pages_max) {
  static_assert(sizeof(Node) == 16);
}

void QueuePolicy::LinkWarm(PageId id) {
  Node& node = nodes_[id];
  node.in = PlaceOf(node);
  Queue& queue = ShelfOf(node).queues[node.in];
  node.prev = kNoId;
  node.next = queue.head;
  if (queue.head != kNoId) nodes_[queue.head].prev = id;
  queue.head = id;
  if (queue.tail == kNoId) queue.tail = id;
}

void QueuePolicy::LinkCold(PageId id) {
  Node& node = nodes_[id];
  node.in = PlaceOf(node);
  Queue& queue = ShelfOf(node).queues[node.in];
  node.next = kNoId;
  node.prev = queue.tail;
  if (queue.tail != kNoId) nodes_[queue.tail].next = id;
  queue.tail = id;
  if (queue.head == kNoId) queue.head = id;
}

void QueuePolicy::Unlink(PageId id) {
  Node& node = nodes_[id];
  if (node.in == kNowhere) return;
  Queue& queue = ShelfOf(node).queues[node.in];
  (node.prev == kNoId ? queue.head : nodes_[node.prev].next) = node.next;
  (node.next == kNoId ? queue.tail : nodes_[node.next].prev) = node.prev;
  node.in = kNowhere;
}

void QueuePolicy::Insert(PageId id, const PageIn& page) {
  Node& node = nodes_[id];
  CRUMB_CHECK(page.size_class != kAnyClass && node.shelf == 0);
  const uint32_t number = shelves_.Join(page.size_class);
  CRUMB_CHECK(number < kShelvesMax);
  node = Node{};
  node.shelf = static_cast<uint16_t>(number + 1);
  node.tick = ++tick_;
  // As many keys are remembered as pages are in memory.
  const bool known = ghosts_.Take(page.key, ++pages_);
  node.home = known || kind_ == PolicyKind::kLru ? kMain : kSmall;
  ++ShelfOf(node).members[node.home];
  LinkWarm(id);
}

void QueuePolicy::Touch(PageId id) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  node.tick = ++tick_;
  --ShelfOf(node).members[node.home];
  ++ShelfOf(node).members[kMain];
  Unlink(id);
  node.home = kMain;
  LinkWarm(id);
}

void QueuePolicy::Erase(PageId id, const PageOut& page) {
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

void QueuePolicy::SetChildren(PageId id, uint32_t count) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  const bool parent = count > 0;
  if (node.parent == parent) return;
  const bool linked = node.in != kNowhere;
  Unlink(id);
  node.parent = parent;
  if (!linked) return;
  parent ? LinkWarm(id) : LinkCold(id);
}

void QueuePolicy::Hold(PageId id) {
  CRUMB_CHECK(nodes_[id].shelf != 0);
  nodes_[id].held = true;
}

void QueuePolicy::Unhold(PageId id) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.shelf != 0);
  if (!node.held) return;
  node.held = false;
  if (node.in == kNowhere) LinkCold(id);
}

// The coldest page of the queue that nobody holds; those in front of it go aside until released.
PageId QueuePolicy::FirstFree(Queue& queue) {
  while (queue.tail != kNoId && nodes_[queue.tail].held) Unlink(queue.tail);
  return queue.tail;
}

PageId QueuePolicy::VictimOf(Shelf& shelf) {
  const PageId fresh = FirstFree(shelf.queues[kSmall]);
  const PageId old = FirstFree(shelf.queues[kMain]);
  if (fresh == kNoId && old == kNoId) return FirstFree(shelf.queues[kPrefixes]);
  if (fresh == kNoId || old == kNoId) return fresh == kNoId ? old : fresh;
  const uint64_t small = shelf.members[kSmall];
  const bool small_is_large = 5 * small >= kSmallFifths * (small + shelf.members[kMain]);
  return small_is_large || Age(fresh) >= Age(old) ? fresh : old;
}

PageId QueuePolicy::Victim(uint32_t size_class) {
  if (size_class != kAnyClass) {
    const uint32_t number = shelves_.Find(size_class);
    return number == shelves_.kNone ? kNoId : VictimOf(shelves_[number]);
  }
  PageId oldest = kNoId;
  for (uint32_t number = 0; number < shelves_.end(); ++number) {
    if (!shelves_.used(number)) continue;
    const PageId id = VictimOf(shelves_[number]);
    if (id == kNoId) continue;
    if (oldest == kNoId || Age(id) > Age(oldest)) oldest = id;
  }
  return oldest;
}

}  // namespace crumb::core
