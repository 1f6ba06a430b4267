// Slab: a fixed number of reusable objects with small ids and stable addresses; and an intrusive
// list over the ids of one slab, in which an object can be once. No allocation after Create.
// One thread.
#ifndef CRUMB_CACHESVC_CORE_SLAB_H_
#define CRUMB_CACHESVC_CORE_SLAB_H_

#include <cstdint>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb::core {

// T has: bool used; uint32_t generation.
template <typename T>
class Slab {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  explicit Slab(uint32_t size) : items_(size) {
    free_.reserve(size);
    for (uint32_t i = size; i > 0; --i) free_.push_back(i - 1);
  }

  // kNone when full. The caller resets what it uses; only `used` and `generation` are set here.
  uint32_t Take() {
    if (free_.empty()) return kNone;
    const uint32_t id = free_.back();
    free_.pop_back();
    items_[id].used = true;
    ++items_[id].generation;
    return id;
  }
  void Give(uint32_t id) {
    CRUMB_CHECK(items_[id].used);
    items_[id].used = false;
    free_.push_back(id);
  }
  bool Alive(uint32_t id, uint32_t generation) const {
    return id < items_.size() && items_[id].used && items_[id].generation == generation;
  }
  T& operator[](uint32_t id) { return items_[id]; }
  const T& operator[](uint32_t id) const { return items_[id]; }
  uint32_t size() const { return static_cast<uint32_t>(items_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t taken() const { return size() - free(); }

 private:
  std::vector<T> items_;
  std::vector<uint32_t> free_;
};

// T has: uint32_t prev, next; List<T>* list (null while in none). A list never moves while it has
// members.
template <typename T>
class List {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  bool empty() const { return head_ == kNone; }
  uint32_t size() const { return size_; }
  uint32_t front() const { return head_; }

  void PushBack(Slab<T>& slab, uint32_t id) { Insert(slab, id, tail_, kNone); }
  void PushFront(Slab<T>& slab, uint32_t id) { Insert(slab, id, kNone, head_); }
  void Remove(Slab<T>& slab, uint32_t id) {
    T& item = slab[id];
    CRUMB_CHECK(item.list == this);
    (item.prev == kNone ? head_ : slab[item.prev].next) = item.next;
    (item.next == kNone ? tail_ : slab[item.next].prev) = item.prev;
    item.list = nullptr;
    --size_;
  }
  uint32_t PopFront(Slab<T>& slab) {
    const uint32_t id = head_;
    if (id != kNone) Remove(slab, id);
    return id;
  }

 private:
  void Insert(Slab<T>& slab, uint32_t id, uint32_t prev, uint32_t next) {
    T& item = slab[id];
    CRUMB_CHECK(item.list == nullptr);
    item.prev = prev;
    item.next = next;
    item.list = this;
    (prev == kNone ? head_ : slab[prev].next) = id;
    (next == kNone ? tail_ : slab[next].prev) = id;
    ++size_;
  }

  uint32_t head_ = kNone, tail_ = kNone;
  uint32_t size_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_SLAB_H_
