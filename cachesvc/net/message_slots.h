// Fixed memory for messages that wait: received and not yet polled, or being sent. Two sizes, as
// most messages are short and the largest is 128 KiB. Pages are touched only when used and the
// last slot given back is the first taken again, so idle memory stays small.
// Must never allocate after it is made. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_
#define CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/types.h"
#include "cachesvc/base/wire.h"

namespace crumb {

inline constexpr uint32_t kSlotNone = UINT32_MAX;

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

  uint32_t held() const { return held_; }
  uint32_t total() const { return classes_[0].count + classes_[1].count; }
  // Less than half of either size is free: time to stop taking more in.
  bool low() const;

 private:
  struct Class {
    std::unique_ptr<uint8_t[]> memory;
    std::vector<uint32_t> free;
    uint32_t slot_bytes = 0;
    uint32_t count = 0;
    uint32_t first = 0;  // number of its first slot
  };
  std::array<Class, 2> classes_;
  uint32_t held_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_MESSAGE_SLOTS_H_
