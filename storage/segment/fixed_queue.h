// A first-in-first-out queue of values with a fixed capacity. One thread; no allocation after
// construction.
#ifndef CRUMB_STORAGE_SEGMENT_FIXED_QUEUE_H_
#define CRUMB_STORAGE_SEGMENT_FIXED_QUEUE_H_

#include <cstddef>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb {

template <typename T>
class FixedQueue {
 public:
  explicit FixedQueue(size_t capacity) : ring_(capacity) {}

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == ring_.size(); }
  size_t size() const { return size_; }

  void Push(const T& value) {
    CRUMB_CHECK(!full());
    ring_[(head_ + size_) % ring_.size()] = value;
    ++size_;
  }
  const T& At(size_t index) const {
    CRUMB_CHECK(index < size_);
    return ring_[(head_ + index) % ring_.size()];
  }
  T Pop() {
    CRUMB_CHECK(!empty());
    const T value = ring_[head_];
    head_ = (head_ + 1) % ring_.size();
    --size_;
    return value;
  }

 private:
  std::vector<T> ring_;
  size_t head_ = 0, size_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_FIXED_QUEUE_H_
