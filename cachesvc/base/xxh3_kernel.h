// XXH3's inner loops, as fast as this machine allows. xxh3_x86.cc picks the vector width at run
// time; xxh3_any.cc takes what the compiler was told. Same results. For hash.cc only. Any thread.
#ifndef CRUMB_CACHESVC_BASE_XXH3_KERNEL_H_
#define CRUMB_CACHESVC_BASE_XXH3_KERNEL_H_

#include <cstddef>
#include <cstdint>

namespace crumb {

uint64_t Xxh3Kernel(const void* data, size_t bytes);
// `state` is an XXH3_state_t.
bool Xxh3KernelUpdate(void* state, const void* data, size_t bytes);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_XXH3_KERNEL_H_
