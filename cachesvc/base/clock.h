// Time behind a seam: the daemon uses SteadyClock, the simulator its own.
// Any thread.
#ifndef CRUMB_CACHESVC_BASE_CLOCK_H_
#define CRUMB_CACHESVC_BASE_CLOCK_H_

#include <cstdint>

namespace crumb {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual uint64_t now_us() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  uint64_t now_us() const override;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_CLOCK_H_
