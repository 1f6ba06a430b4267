// Held pages are out of their list and come back at the warm end: whoever held them used them.
// Lists of classes that nobody uses any more are given back. One thread (the shard).
#include "cachesvc/core/lru_policy.h"

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr uint32_t kLeafSearchMax = 16;  // how far from the cold end a leaf is looked for
constexpr size_t kClassesExpected = 256;
}  // namespace

absl::StatusOr<std::unique_ptr<LruPolicy>> LruPolicy::Create(uint32_t entries_max) {
  std::unique_ptr<LruPolicy> policy(new LruPolicy());
  CRUMB_ASSIGN(policy->memory_, Arena::Map(uint64_t{entries_max} * sizeof(Node), HugePages::kNo));
  policy->nodes_ = {reinterpret_cast<Node*>(policy->memory_.bytes().data()), entries_max};
  policy->lists_.reserve(kClassesExpected);
  policy->free_lists_.reserve(kClassesExpected);
  policy->list_of_class_.reserve(kClassesExpected);
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

void LruPolicy::Insert(EntryId id, uint32_t size_class) {
  CRUMB_CHECK(size_class != kAnyClass && nodes_[id].list == 0);
  auto [it, fresh] = list_of_class_.try_emplace(size_class, 0);
  if (fresh) {
    if (free_lists_.empty()) {
      lists_.push_back({});
      it->second = static_cast<uint32_t>(lists_.size()) - 1;
    } else {
      it->second = free_lists_.back();
      free_lists_.pop_back();
    }
    lists_[it->second] = {.size_class = size_class};
  }
  nodes_[id].list = it->second + 1;
  nodes_[id].held = false;
  ++lists_[it->second].members;
  Link(id);
}

void LruPolicy::Touch(EntryId id) {
  CRUMB_CHECK(nodes_[id].list != 0);
  if (nodes_[id].held) return;
  Unlink(id);
  Link(id);
}

void LruPolicy::Erase(EntryId id) {
  Node& node = nodes_[id];
  CRUMB_CHECK(node.list != 0);
  if (!node.held) Unlink(id);
  const uint32_t index = node.list - 1;
  node = Node{};
  if (--lists_[index].members > 0) return;
  list_of_class_.erase(lists_[index].size_class);
  free_lists_.push_back(index);
}

void LruPolicy::SetChildren(EntryId id, uint32_t count) { nodes_[id].parent = count > 0; }

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

EntryId LruPolicy::Victim(uint32_t size_class) const {
  if (size_class != kAnyClass) {
    const auto it = list_of_class_.find(size_class);
    return it == list_of_class_.end() ? kNoId : VictimOf(lists_[it->second]);
  }
  EntryId oldest = kNoId;
  for (const auto& [unused, index] : list_of_class_) {
    const EntryId id = VictimOf(lists_[index]);
    // Ticks wrap: compare by distance from now.
    if (id == kNoId) continue;
    if (oldest == kNoId || tick_ - nodes_[id].tick > tick_ - nodes_[oldest].tick) oldest = id;
  }
  return oldest;
}

}  // namespace crumb::core
