// Checks of io_uring and of the data directory: a real ring, a real file with O_DIRECT, a real
// write and read of 64 MiB. The file is unlinked before it is written, so nothing can stay behind.
#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr int kBlocks = 64;
constexpr size_t kAlignment = 4096;
constexpr double kSlowBytesPerSecond = 100e6;
constexpr uint64_t kFreeWanted = 1ull << 30;

struct AlignedFree {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, AlignedFree>;

struct Speed {
  double write_bytes_per_second = 0;
  double read_bytes_per_second = 0;
  int error = 0;
};

// Sequential, one at a time: what a single-depth disk gives; the daemon keeps more in flight.
Speed MeasureFile(int fd) {
  Speed speed;
  Buffer buffer(std::aligned_alloc(kAlignment, kBlockBytes));
  if (buffer == nullptr) return {.error = ENOMEM};
  Rng rng(1);
  auto* words = static_cast<uint64_t*>(buffer.get());
  for (size_t i = 0; i < kBlockBytes / sizeof(uint64_t); ++i) words[i] = rng.Next();
  const SteadyClock clock;
  const uint64_t start_us = clock.now_us();
  for (int i = 0; i < kBlocks; ++i) {
    if (::pwrite(fd, buffer.get(), kBlockBytes, static_cast<off_t>(i) * kBlockBytes) !=
        static_cast<ssize_t>(kBlockBytes)) {
      return {.error = errno == 0 ? ENOSPC : errno};
    }
  }
  if (::fdatasync(fd) != 0) return {.error = errno};
  const uint64_t written_us = clock.now_us();
  for (int i = 0; i < kBlocks; ++i) {
    if (::pread(fd, buffer.get(), kBlockBytes, static_cast<off_t>(i) * kBlockBytes) !=
        static_cast<ssize_t>(kBlockBytes)) {
      return {.error = errno == 0 ? EIO : errno};
    }
  }
  const uint64_t read_us = clock.now_us();
  const double bytes = static_cast<double>(kBlockBytes) * kBlocks;
  speed.write_bytes_per_second = bytes * 1e6 / static_cast<double>(written_us - start_us + 1);
  speed.read_bytes_per_second = bytes * 1e6 / static_cast<double>(read_us - written_us + 1);
  return speed;
}

Check CheckSpace(const std::string& directory) {
  Check check{.name = "disk space"};
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) {
    check.level = Level::kFail;
    check.text = absl::StrCat(directory, ": ", std::strerror(errno));
    check.remedy = "name a directory on a mounted file system";
    return check;
  }
  const uint64_t available = uint64_t{info.f_bavail} * info.f_frsize;
  check.text = absl::StrCat(HumanBytes(static_cast<double>(available)), " free at ", directory);
  if (available < kFreeWanted) {
    check.level = Level::kWarn;
    check.remedy = "less than 1 GiB: the NVMe tier will be small; free space or set nvme.path";
    check.hint = absl::StrCat("du -xh --max-depth=1 ", directory, " | sort -h | tail");
  }
  return check;
}

// An unlinked file in the directory; -1 with errno.
int OpenScratch(const std::string& directory, int extra_flags) {
  std::string path = absl::StrCat(directory, "/.crumb-doctor-XXXXXX");
  const int fd = ::mkostemp(path.data(), O_CLOEXEC | extra_flags);
  const int error = errno;
  if (fd >= 0) ::unlink(path.c_str());
  errno = error;
  return fd;
}

}  // namespace

Check CheckUring() {
  Check check{.name = "io_uring"};
  io_uring ring{};
  int error = ::io_uring_queue_init(8, &ring, 0);
  if (error == 0) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
    ::io_uring_prep_nop(sqe);
    error = ::io_uring_submit_and_wait(&ring, 1) == 1 ? 0 : -EIO;
    ::io_uring_queue_exit(&ring);
  }
  if (error == 0) {
    check.text = "a ring was set up and answered";
    return check;
  }
  check.level = Level::kWarn;
  check.text = absl::StrCat("refused: ", std::strerror(-error));
  if (error == -EPERM || error == -ENOSYS) {
    check.remedy =
        "the NVMe tier falls back to threads; allow io_uring in the seccomp profile and "
        "in kernel.io_uring_disabled";
    check.hint =
        "sysctl kernel.io_uring_disabled=0  # in a container: a seccomp profile that "
        "allows io_uring_setup, io_uring_enter, io_uring_register";
  } else {
    check.remedy = "the NVMe tier falls back to threads; raise the memlock limit";
    check.hint = "ulimit -l unlimited";
  }
  return check;
}

std::vector<Check> CheckDataDir(const std::string& directory) {
  std::vector<Check> checks;
  Check direct{.name = "O_DIRECT"};
  int fd = OpenScratch(directory, O_DIRECT);
  if (fd < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
    direct.level = Level::kWarn;
    direct.text = absl::StrCat(directory, ": the file system refuses O_DIRECT");
    direct.remedy =
        "writes go through the page cache: slower, and memory is used twice; put the "
        "data directory on ext4 or XFS";
    fd = OpenScratch(directory, 0);
  } else if (fd >= 0) {
    direct.text = absl::StrCat("works in ", directory);
  }
  if (fd < 0) {
    direct.level = Level::kFail;
    direct.text = absl::StrCat(directory, ": no file can be made: ", std::strerror(errno));
    direct.remedy = "create the directory and give it to the daemon's user";
    direct.hint = absl::StrCat("install -d -m 0700 ", directory);
    return {direct};
  }
  checks.push_back(direct);
  checks.push_back(CheckSpace(directory));
  Check disk{.name = "disk speed"};
  const Speed speed = MeasureFile(fd);
  ::close(fd);
  if (speed.error != 0) {
    disk.level = Level::kFail;
    disk.text = absl::StrCat("64 MiB could not be written and read: ", std::strerror(speed.error));
    disk.remedy = "free space, or name another directory";
  } else {
    disk.text = absl::StrFormat("write %s/s, read %s/s (1 MiB, one at a time)",
                                HumanBytes(speed.write_bytes_per_second),
                                HumanBytes(speed.read_bytes_per_second));
    if (speed.read_bytes_per_second < kSlowBytesPerSecond ||
        speed.write_bytes_per_second < kSlowBytesPerSecond) {
      disk.level = Level::kWarn;
      disk.remedy =
          "slower than 100 MB/s: a hit from this disk may cost more than computing; use "
          "an NVMe device";
    }
  }
  checks.push_back(disk);
  return checks;
}

}  // namespace crumb::cli
