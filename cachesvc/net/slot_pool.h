// Fixed memory in slots of one size. Pages are touched only when used and the last slot given back
// is the first taken again, so idle memory stays small.
// Must never allocate after it is made. One thread, its owner's.
#ifndef CRUMB_CACHESVC_NET_SLOT_POOL_H_
#define CRUMB_CACHESVC_NET_SLOT_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/check.h"

namespace crumb {

inline constexpr uint32_t kSlotNone = UINT32_MAX;

class SlotPool {
 public:
  SlotPool(uint32_t slot_bytes, uint32_t count)
      : slot_bytes_(slot_bytes),
        count_(count),
        memory_(std::make_unique_for_overwrite<uint8_t[]>(size_t{slot_bytes} * count)) {
    CRUMB_CHECK(slot_bytes > 0 && count > 0 && count < kSlotNone);
    free_.reserve(count);
    for (uint32_t slot = count; slot > 0; --slot) free_.push_back(slot - 1);
  }

  // kSlotNone: none is free.
  uint32_t Take() {
    if (free_.empty()) return kSlotNone;
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Give(uint32_t slot) {
    CRUMB_CHECK(slot < count_ && free_.size() < count_);
    free_.push_back(slot);
  }
  uint8_t* data(uint32_t slot) const {
    CRUMB_CHECK(slot < count_);
    return memory_.get() + size_t{slot} * slot_bytes_;
  }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint32_t count() const { return count_; }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t held() const { return count_ - free(); }

 private:
  uint32_t slot_bytes_;
  uint32_t count_;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<uint32_t> free_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_SLOT_POOL_H_
