// A first-in first-out queue that never grows: the size is fixed when it is made.
// Must never be shared between threads: base/mailbox.h is for that. One thread, its owner's.
#ifndef CRUMB_CACHESVC_NET_BOUNDED_RING_H_
#define CRUMB_CACHESVC_NET_BOUNDED_RING_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb {

template <typename T>
class BoundedRing {
 public:
  explicit BoundedRing(size_t capacity) : slots_(capacity) { CRUMB_CHECK(capacity > 0); }

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == slots_.size(); }
  size_t size() const { return size_; }
  size_t capacity() const { return slots_.size(); }

  // False when full: the caller answers busy.
  [[nodiscard]] bool Push(T value) {
    if (full()) return false;
    size_t index = first_ + size_;
    if (index >= slots_.size()) index -= slots_.size();
    slots_[index] = std::move(value);
    ++size_;
    return true;
  }

  // REQUIRES: not empty.
  T& front() { return slots_[first_]; }
  T Pop() {
    CRUMB_CHECK(size_ > 0);
    T value = std::move(slots_[first_]);
    first_ = first_ + 1 == slots_.size() ? 0 : first_ + 1;
    --size_;
    return value;
  }

 private:
  std::vector<T> slots_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_BOUNDED_RING_H_
