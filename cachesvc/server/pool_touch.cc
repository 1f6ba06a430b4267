// See pool_touch.h. WHY plain stores: a fault takes the memory map for one page, while one call for
// all of it keeps every other thread that maps memory waiting.
#include "cachesvc/server/pool_touch.h"

#include <sys/mman.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kChunkBytes = 64ull << 20;
constexpr uint64_t kMebibyte = 1ull << 20;

}  // namespace

bool MayPin(MutableBytes memory) {
  if (memory.empty() || mlock2(memory.data(), memory.size(), MLOCK_ONFAULT) != 0) return false;
  munlock(memory.data(), memory.size());
  return true;
}

absl::Status TouchPool(MutableBytes memory, StartWatch* watch) {
  // WHY huge pages where the kernel has them: all of it will be resident anyway, and the kernel
  // cuts a disk request into as many pieces as its memory has.
  ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  for (uint64_t at = 0; at < memory.size(); at += kChunkBytes) {
    CRUMB_TRY(watch->Check());
    watch->Say(absl::StrCat("pinning the pool, ", at / kMebibyte, " of ", memory.size() / kMebibyte,
                            " MiB done"));
    const uint64_t end = std::min<uint64_t>(at + kChunkBytes, memory.size());
    volatile uint8_t* bytes = memory.data();
    for (uint64_t page = at; page < end; page += kPageBytes) bytes[page] = 0;
  }
  return watch->Check();
}

}  // namespace crumb
