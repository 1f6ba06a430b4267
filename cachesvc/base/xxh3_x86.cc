// XXH3 on x86-64: SSE2, AVX2 or AVX-512 by what the processor has. Must never differ from
// xxh3_any.cc in a result. Any thread.
#include <xxh_x86dispatch.h>

#include "cachesvc/base/xxh3_kernel.h"

namespace crumb {

uint64_t Xxh3Kernel(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

bool Xxh3KernelUpdate(void* state, const void* data, size_t bytes) {
  return XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes) == XXH_OK;
}

}  // namespace crumb
