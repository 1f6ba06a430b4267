// Sealed anonymous files, and the map of what a worker shares.
#include "crumb/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/src/shared_map.h"
#include "client/src/status_map.h"

namespace crumb::client {
namespace {

constexpr size_t kRangesMax = 256;

uint64_t PageBytes() { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

absl::Status SystemError(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("SharedMemory: ", what, ": ", std::strerror(errno)));
}

// Sized, mapped and sealed; closes `fd` when it fails.
absl::StatusOr<SharedRange> MapSealed(int fd, uint64_t bytes) {
  SharedRange range{.fd = fd, .offset = 0, .address = nullptr, .bytes = bytes};
  absl::Status status;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) status = SystemError("no room");
  // WHY before the mapping: nobody may write by other ways than mappings made now or later.
  if (status.ok() && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    status = SystemError("cannot be sealed");
  }
  if (status.ok()) {
    range.address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (range.address == MAP_FAILED) status = SystemError("cannot be mapped");
  }
  if (status.ok()) return range;
  ::close(fd);
  return status;
}

}  // namespace

Status SharedMemory::Create(uint64_t bytes, std::unique_ptr<SharedMemory>* out) {
  const uint64_t page = PageBytes();
  if (bytes == 0 || bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - page) {
    return {Code::kInvalid, absl::StrCat("SharedMemory: ", bytes, " bytes cannot be had")};
  }
  const uint64_t rounded = (bytes + page - 1) / page * page;
  const int fd = ::memfd_create("crumb", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return ToStatus(SystemError("memfd_create"));
  const absl::StatusOr<SharedRange> range = MapSealed(fd, rounded);
  if (!range.ok()) return ToStatus(range.status());
  out->reset(new SharedMemory(*range));
  return {};
}

SharedMemory::~SharedMemory() {
  ::munmap(range_.address, range_.bytes);
  ::close(range_.fd);
}

SharedMap::Held::~Held() { ::close(range.fd); }

absl::Status SharedMap::Add(const SharedRange& range) {
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(range.address));
  const uint64_t page = PageBytes();
  if (range.bytes == 0 || range.address == nullptr || address % page != 0 ||
      range.offset % page != 0 || range.bytes > std::numeric_limits<uint64_t>::max() - address) {
    return absl::InvalidArgumentError(
        "ShareMemory: a range is the page-aligned mapping of a page-aligned part of a file");
  }
  struct stat file {};
  if (::fstat(range.fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError("ShareMemory: fd is no open file in memory");
  }
  const auto size = static_cast<uint64_t>(file.st_size);
  if (range.offset > size || range.bytes > size - range.offset) {
    return absl::InvalidArgumentError(absl::StrCat("ShareMemory: [", range.offset, ", +",
                                                   range.bytes, ") passes the end of a file of ",
                                                   size, " bytes"));
  }
  for (const auto& held : ranges_) {
    const auto other = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(held->range.address));
    if (address < other + held->range.bytes && other < address + range.bytes) {
      return absl::InvalidArgumentError("ShareMemory: overlaps memory that is shared already");
    }
  }
  if (ranges_.size() >= kRangesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ShareMemory: a client shares at most ", kRangesMax, " ranges"));
  }
  SharedRange own = range;
  own.fd = ::fcntl(range.fd, F_DUPFD_CLOEXEC, 0);
  if (own.fd < 0) return SystemError("the descriptor cannot be duplicated");
  ranges_.push_back(std::make_shared<const Held>(own));
  return absl::OkStatus();
}

std::optional<SharedRange> SharedMap::Find(uint64_t address, uint64_t bytes) const {
  for (const auto& held : ranges_) {
    const SharedRange& range = held->range;
    const auto base = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(range.address));
    if (address < base || address - base > range.bytes) continue;
    if (bytes > range.bytes - (address - base)) continue;
    return SharedRange{.fd = range.fd,
                       .offset = range.offset + (address - base),
                       .address = reinterpret_cast<void*>(static_cast<uintptr_t>(address)),
                       .bytes = bytes};
  }
  return std::nullopt;
}

}  // namespace crumb::client
