// Memory for messages that wait: received and not yet polled, or being sent. Two sizes, as most
// messages are short and the largest is 128 KiB.
// Must never allocate after it is made. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_
#define CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_

#include <cstdint>

#include "cachesvc/base/wire.h"
#include "cachesvc/net/slot_pool.h"

namespace crumb {

class MessageSlots {
 public:
  static constexpr uint32_t kPrefixBytes = 64;  // room in front of a message for a transport's own
  static constexpr uint32_t kSmallBytes = 2048;
  static constexpr uint32_t kLargeBytes = kPrefixBytes + kWireMessageBytesMax;
  static constexpr uint32_t kLargeShare = 16;  // one large slot for so many small ones
  static constexpr uint32_t kLargeMin = 8;

  // `count` small slots and count / kLargeShare (at least kLargeMin) large ones.
  explicit MessageSlots(uint32_t count);

  // A slot of at least `bytes`, or kSlotNone: none is free, or `bytes` is above kLargeBytes.
  uint32_t Take(size_t bytes);
  void Give(uint32_t slot);
  uint8_t* data(uint32_t slot) const;

  uint32_t held() const { return small_.held() + large_.held(); }
  uint32_t total() const { return small_.count() + large_.count(); }
  // Less than half of either size is free: time to stop taking more in.
  bool low() const;

 private:
  SlotPool small_;
  SlotPool large_;  // numbered behind the small ones
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_
