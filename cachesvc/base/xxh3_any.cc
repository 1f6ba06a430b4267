// XXH3 with the vector width of the build. Must never differ from xxh3_x86.cc in a result. Any
// thread.
#include <xxhash.h>

#include "cachesvc/base/xxh3_kernel.h"

namespace crumb {

uint64_t Xxh3Kernel(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

bool Xxh3KernelUpdate(void* state, const void* data, size_t bytes) {
  return XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes) == XXH_OK;
}

}  // namespace crumb
