// Two pools under one numbering. Never zeroes or touches a slot by itself. Owner's thread.
#include "cachesvc/net/message_slots.h"

#include <algorithm>

namespace crumb {

MessageSlots::MessageSlots(uint32_t count)
    : small_(kSmallBytes, count), large_(kLargeBytes, std::max(kLargeMin, count / kLargeShare)) {}

uint32_t MessageSlots::Take(size_t bytes) {
  if (bytes <= kSmallBytes && small_.free() > 0) return small_.Take();
  if (bytes > kLargeBytes) return kSlotNone;
  const uint32_t slot = large_.Take();
  return slot == kSlotNone ? kSlotNone : small_.count() + slot;
}

void MessageSlots::Give(uint32_t slot) {
  if (slot < small_.count()) {
    small_.Give(slot);
  } else {
    large_.Give(slot - small_.count());
  }
}

uint8_t* MessageSlots::data(uint32_t slot) const {
  return slot < small_.count() ? small_.data(slot) : large_.data(slot - small_.count());
}

bool MessageSlots::low() const {
  return small_.free() < small_.count() / 2 || large_.free() < large_.count() / 2;
}

}  // namespace crumb
