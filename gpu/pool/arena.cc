// mmap behind a value. WHY MAP_HUGETLB is only tried: most machines have none reserved, and
// transparent huge pages give nearly the same.
#include "gpu/pool/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/huge_page.h"

namespace crumb {
namespace {

constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr uint64_t kPageBytes = 4096;

// From the first byte of a huge page on, where it is as large as one: then all but its end can lie
// in huge pages, whoever asks for them later. MAP_FAILED: errno.
void* MapAtHugePage(uint64_t bytes) {
  const bool large = bytes >= kHugePageBytes && bytes <= UINT64_MAX / 2;
  if (!large) return mmap(nullptr, bytes, kProtection, kFlags, -1, 0);
  const uint64_t kept = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const mapped = mmap(nullptr, kept + kHugePageBytes, kProtection, kFlags, -1, 0);
  if (mapped == MAP_FAILED) return mapped;
  auto* const first = static_cast<uint8_t*>(mapped);
  const uint64_t past = reinterpret_cast<uintptr_t>(first) % kHugePageBytes;
  const uint64_t before = past == 0 ? 0 : kHugePageBytes - past;
  if (before > 0) munmap(first, before);
  munmap(first + before + kept, kHugePageBytes - before);
  return first + before;
}

}  // namespace

absl::StatusOr<Arena> Arena::Map(uint64_t bytes, HugePages hugepages) {
  Arena arena;
  void* data = MAP_FAILED;
  if (hugepages == HugePages::kWanted && bytes % kHugePageBytes == 0) {
    // Reserved huge pages must exist in full, else a later touch would be a SIGBUS.
    data = mmap(nullptr, bytes, kProtection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  }
  if (data == MAP_FAILED) data = MapAtHugePage(bytes);
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
