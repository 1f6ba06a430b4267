// The size of a huge page where this daemon runs: x86-64 and 64-bit ARM with pages of 4 KiB.
#ifndef CRUMB_CACHESVC_BASE_HUGE_PAGE_H_
#define CRUMB_CACHESVC_BASE_HUGE_PAGE_H_

#include <cstdint>

namespace crumb {

inline constexpr uint64_t kHugePageBytes = 2ull << 20;

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_HUGE_PAGE_H_
