// Copies from and to memory that another process can take away: a file that shrinks under a mapping
// raises SIGBUS in whoever touches it. Any thread; no allocation, no lock.
// Must never hide a SIGBUS that is not the copy's own: that goes on to whoever handled it before.
#ifndef CRUMB_CACHESVC_NET_GUARDED_COPY_H_
#define CRUMB_CACHESVC_NET_GUARDED_COPY_H_

#include <cstddef>

namespace crumb {

// Once per process, before the first copy; later calls do nothing. False: the kernel refuses.
bool InstallCopyGuard();

// False: some of the memory was not there; what was copied before stays copied.
// REQUIRES: InstallCopyGuard said true.
[[nodiscard]] bool GuardedCopy(void* to, const void* from, size_t bytes) noexcept;

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_GUARDED_COPY_H_
