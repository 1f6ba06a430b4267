// The global operators, counted. A file of its own, so that no caller sees through them.
#include "tests/unit/client/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace crumb::testing {

uint64_t Allocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace crumb::testing
