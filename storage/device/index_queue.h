// A first-in-first-out queue of slot numbers with a fixed capacity. One thread; no allocation
// after construction.
#ifndef CRUMB_STORAGE_DEVICE_INDEX_QUEUE_H_
#define CRUMB_STORAGE_DEVICE_INDEX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb {

class IndexQueue {
 public:
  explicit IndexQueue(size_t capacity) : ring_(capacity) {}

  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == ring_.size(); }
  size_t size() const { return size_; }

  void Push(uint32_t index) {
    CRUMB_CHECK(!full());
    ring_[(head_ + size_) % ring_.size()] = index;
    ++size_;
  }
  uint32_t Front() const {
    CRUMB_CHECK(!empty());
    return ring_[head_];
  }
  // The one `place` behind the front.
  uint32_t At(size_t place) const {
    CRUMB_CHECK(place < size_);
    return ring_[(head_ + place) % ring_.size()];
  }
  uint32_t Pop() {
    const uint32_t index = Front();
    head_ = (head_ + 1) % ring_.size();
    --size_;
    return index;
  }

 private:
  std::vector<uint32_t> ring_;
  size_t head_ = 0, size_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_INDEX_QUEUE_H_
