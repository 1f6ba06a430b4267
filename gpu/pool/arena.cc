// mmap behind a value. WHY MAP_HUGETLB is only tried: most machines have none reserved, and
// transparent huge pages give nearly the same.
#include "gpu/pool/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb {

absl::StatusOr<Arena> Arena::Map(uint64_t bytes, HugePages hugepages) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  constexpr uint64_t kHugePageBytes = 2ull << 20;
  Arena arena;
  void* data = MAP_FAILED;
  if (hugepages == HugePages::kWanted && bytes % kHugePageBytes == 0) {
    // Reserved huge pages must exist in full, else a later touch would be a SIGBUS.
    data = mmap(nullptr, bytes, kProtection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  }
  if (data == MAP_FAILED) data = mmap(nullptr, bytes, kProtection, kFlags, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", bytes,
                                                     " bytes for the pool: ", std::strerror(errno),
                                                     "; lower pool.dram_bytes"));
  }
  if (hugepages != HugePages::kNo) madvise(data, bytes, MADV_HUGEPAGE);
  arena.data_ = static_cast<uint8_t*>(data);
  arena.mapped_bytes_ = bytes;
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

}  // namespace crumb
