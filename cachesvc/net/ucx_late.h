// UCX is loaded by whoever needs it first, not with the program: see ucx_late.cc. Any thread.
#ifndef CRUMB_CACHESVC_NET_UCX_LATE_H_
#define CRUMB_CACHESVC_NET_UCX_LATE_H_

#include "cachesvc/base/status.h"

namespace crumb {

// Before any function of UCX is called. UNAVAILABLE: it is not installed, or another one.
absl::Status LoadUcx();

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_LATE_H_
