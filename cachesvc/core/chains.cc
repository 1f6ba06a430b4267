// Bookkeeping only; the walks over chains are in windows.cc. One thread (the shard).
#include "cachesvc/core/chains.h"

#include <algorithm>

#include "cachesvc/base/check.h"

namespace crumb::core {
namespace {
constexpr size_t kGhostsMin = 4096, kGhostsMax = 1 << 20;
constexpr size_t kEntriesPerGhost = 8;
}  // namespace

absl::StatusOr<Chains> Chains::Create(uint32_t entries_max, uint32_t pages_max) {
  Chains chains;
  CRUMB_ASSIGN(chains.memory_, Arena::Map(uint64_t{pages_max} * sizeof(Node), HugePages::kNo));
  chains.nodes_ = {reinterpret_cast<Node*>(chains.memory_.bytes().data()), pages_max};
  chains.ghosts_max_ = std::clamp(entries_max / kEntriesPerGhost, kGhostsMin, kGhostsMax);
  chains.ghosts_.reserve(chains.ghosts_max_);
  return chains;
}

Ghost Chains::TakeGhost(uint64_t prefix) {
  const auto found = ghosts_.find(prefix);
  if (found == ghosts_.end()) return {};
  const Ghost ghost = found->second;
  ghosts_.erase(found);
  return ghost;
}

void Chains::LeaveGhost(uint64_t prefix, const Ghost& left) {
  if (left.children > 0 && ghosts_.size() < ghosts_max_) ghosts_.try_emplace(prefix, left);
}

Ghost* Chains::FindGhost(uint64_t prefix) {
  const auto ghost = ghosts_.find(prefix);
  return ghost == ghosts_.end() ? nullptr : &ghost->second;
}

const Ghost* Chains::FindGhost(uint64_t prefix) const {
  const auto ghost = ghosts_.find(prefix);
  return ghost == ghosts_.end() ? nullptr : &ghost->second;
}

void Chains::AddGhostChild(uint64_t prefix) {
  if (Ghost* ghost = FindGhost(prefix); ghost != nullptr) {
    ++ghost->children;
  } else if (ghosts_.size() < ghosts_max_) {
    ghosts_.try_emplace(prefix, Ghost{.newest_end = 0, .children = 1, .parent_prefix = 0});
  }
}

void Chains::DropGhostChild(uint64_t prefix) {
  const auto ghost = ghosts_.find(prefix);
  if (ghost == ghosts_.end()) return;
  if (--ghost->second.children == 0) ghosts_.erase(ghost);
}

void Chains::Enter(PageId id) {
  nodes_[id] = Node{};
  nodes_[id].prev = nodes_[id].next = nodes_[id].demotion = kNoId;
}

void Chains::Push(FreshQueue queue, PageId id, uint64_t time_us) {
  CRUMB_CHECK(queue != FreshQueue::kNone);
  Remove(id);
  Node& node = nodes_[id];
  Queue& list = queues_[static_cast<size_t>(queue) - 1];
  node.queue = queue;
  node.queued_us = time_us;
  node.prev = list.tail;
  node.next = kNoId;
  (list.tail == kNoId ? list.head : nodes_[list.tail].next) = id;
  list.tail = id;
  ++list.size;
}

void Chains::Remove(PageId id) {
  Node& node = nodes_[id];
  if (node.queue == FreshQueue::kNone) return;
  Queue& list = queues_[static_cast<size_t>(node.queue) - 1];
  (node.prev == kNoId ? list.head : nodes_[node.prev].next) = node.next;
  (node.next == kNoId ? list.tail : nodes_[node.next].prev) = node.prev;
  node.queue = FreshQueue::kNone;
  --list.size;
}

}  // namespace crumb::core
