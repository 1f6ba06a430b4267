// The real clock.
#include "cachesvc/base/clock.h"

#include <chrono>

namespace crumb {

uint64_t SteadyClock::now_us() const {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(since).count());
}

}  // namespace crumb
