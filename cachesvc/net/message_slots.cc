// Two free lists over two blocks of memory. Never zeroes or touches a slot by itself. Owner's
// thread.
#include "cachesvc/net/message_slots.h"

#include <algorithm>

#include "cachesvc/base/check.h"

namespace crumb {

MessageSlots::MessageSlots(uint32_t count) {
  CRUMB_CHECK(count > 0 && count <= 1u << 20);
  const uint32_t counts[2] = {count, std::max(kLargeMin, count / kLargeShare)};
  const uint32_t sizes[2] = {kSmallBytes, kLargeBytes};
  uint32_t first = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    c.count = counts[i];
    c.slot_bytes = sizes[i];
    c.first = first;
    c.memory = std::make_unique_for_overwrite<uint8_t[]>(size_t{c.count} * c.slot_bytes);
    c.free.reserve(c.count);
    for (uint32_t k = c.count; k > 0; --k) c.free.push_back(first + k - 1);
    first += c.count;
  }
}

uint32_t MessageSlots::Take(size_t bytes) {
  for (Class& c : classes_) {
    if (bytes > c.slot_bytes || c.free.empty()) continue;
    const uint32_t slot = c.free.back();
    c.free.pop_back();
    ++held_;
    return slot;
  }
  return kSlotNone;
}

void MessageSlots::Give(uint32_t slot) {
  Class& c = classes_[slot < classes_[1].first ? 0 : 1];
  CRUMB_CHECK(slot - c.first < c.count && c.free.size() < c.count && held_ > 0);
  c.free.push_back(slot);
  --held_;
}

uint8_t* MessageSlots::data(uint32_t slot) const {
  const Class& c = classes_[slot < classes_[1].first ? 0 : 1];
  CRUMB_CHECK(slot - c.first < c.count);
  return c.memory.get() + size_t{slot - c.first} * c.slot_bytes;
}

bool MessageSlots::low() const {
  return std::any_of(classes_.begin(), classes_.end(),
                     [](const Class& c) { return c.free.size() < c.count / 2; });
}

}  // namespace crumb
