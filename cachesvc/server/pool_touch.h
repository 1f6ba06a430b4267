// Makes the pool's memory present before it is registered with the kernel, a chunk at a time:
// registering then only counts it, and nothing holds the process' memory map for seconds. The
// shard's thread, at the start.
#ifndef CRUMB_CACHESVC_SERVER_POOL_TOUCH_H_
#define CRUMB_CACHESVC_SERVER_POOL_TOUCH_H_

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "cachesvc/server/start_watch.h"

namespace crumb {

// Whether the limits of this process let it keep `memory` in place. Touches nothing.
bool MayPin(MutableBytes memory);

// Writes a zero into every page of `memory`, which must be all zeros. Says how far it is; CANCELLED
// between two chunks if the watch says so.
absl::Status TouchPool(MutableBytes memory, StartWatch* watch);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_POOL_TOUCH_H_
