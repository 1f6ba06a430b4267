// Held pages are out of their list and come back at the warm end: whoever held them used them.
// One thread (the shard).
#include "cachesvc/core/lru_policy.h"

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr uint32_t kLeafSearchMax = 16;  // how far from the cold end a leaf is looked for
}  // namespace

absl::StatusOr<std::unique_ptr<LruPolicy>> LruPolicy::Create(uint32_t entries_max) {
  std::unique_ptr<LruPolicy> policy(new LruPolicy());
  CRUMB_ASSIGN(policy->memory_, Arena::Map(uint64_t{entries_max} * sizeof(Node), HugePages::kNo));
  policy->nodes_ = {reinterpret_cast<Node*>(policy->memory_.bytes().data()), entries_max};
  return policy;
}

void LruPolicy::Link(EntryId id) {
  Node& node = nodes_[id];
  List& list = lists_[node.list - 1];
  node.prev = kNoId;
  node.next = list.head;
  node.tick = ++tick_;
  if (list.head != kNoId) nodes_[list.head].prev = id;
  list.head = id;
  if (list.tail == kNoId) list.tail = id;
}

void LruPolicy::Unlink(EntryId id) {
  const Node& node = nodes_[id];
  List& list = lists_[node.list - 1];
  (node.prev == kNoId ? list.head : nodes_[node.prev].next) = node.next;
  (node.next == kNoId ? list.tail : nodes_[node.next].prev) = node.prev;
}

void LruPolicy::Insert(EntryId id, const PageIn& page) {
  CRUMB_CHECK(page.size_class != kAnyClass && nodes_[id].list == 0);
  nodes_[id] = Node{};
  nodes_[id].list = lists_.Join(page.size_class) + 1;
  Link(id);
}

void LruPolicy::Touch(EntryId id) {
  CRUMB_CHECK(nodes_[id].list != 0);
  if (nodes_[id].held) return;
  Unlink(id);
  Link(id);
}

void LruPolicy::Erase(EntryId id, const PageOut&) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.list != 0);
  if (!node.held) Unlink(id);
  lists_.Leave(node.list - 1);
  node = Node{};
}

void LruPolicy::SetChildren(EntryId id, uint32_t count) {
  CRUMB_CHECK(nodes_[id].list != 0);
  nodes_[id].parent = count > 0;
}

void LruPolicy::Hold(EntryId id) {
  CRUMB_CHECK(nodes_[id].list != 0);
  if (!nodes_[id].held) Unlink(id);
  nodes_[id].held = true;
}

void LruPolicy::Unhold(EntryId id) {
  CRUMB_CHECK(nodes_[id].list != 0);
  if (!nodes_[id].held) return;
  nodes_[id].held = false;
  Link(id);
}

EntryId LruPolicy::VictimOf(const List& list) const {
  EntryId id = list.tail;
  for (uint32_t i = 0; i < kLeafSearchMax && id != kNoId; ++i) {
    if (!nodes_[id].parent) return id;
    id = nodes_[id].prev;
  }
  return list.tail;
}

EntryId LruPolicy::Victim(uint32_t size_class) {
  if (size_class != kAnyClass) {
    const uint32_t number = lists_.Find(size_class);
    return number == lists_.kNone ? kNoId : VictimOf(lists_[number]);
  }
  EntryId oldest = kNoId;
  for (uint32_t number = 0; number < lists_.end(); ++number) {
    if (!lists_.used(number)) continue;
    const EntryId id = VictimOf(lists_[number]);
    // Ticks wrap: compare by distance from now.
    if (id == kNoId) continue;
    if (oldest == kNoId || tick_ - nodes_[id].tick > tick_ - nodes_[oldest].tick) oldest = id;
  }
  return oldest;
}

}  // namespace crumb::core
