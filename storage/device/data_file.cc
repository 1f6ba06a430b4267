// See data_file.h. The order matters: lock, let the owner look, only then change anything.
#include "storage/device/data_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "storage/device/aligned_buffer.h"

namespace crumb {
namespace {

constexpr int kLockPauseMs = 20;
constexpr int kInterruptsMax = 100;
constexpr mode_t kMode = 0600;

std::string Why(int error) { return std::strerror(error); }

absl::Status OpenError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", Why(error));
  switch (error) {
    case ELOOP:
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": is a symbolic link, which is never followed: name the file itself"));
    case EISDIR:
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is a directory: name a file in it"));
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(absl::StrCat(text, ": create its directory first"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat(text, ": give this user write access, or choose another path"));
    default:
      return absl::UnavailableError(text);
  }
}

constexpr int kOpenFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

// WHY wait at all: writes of a killed predecessor may still be in the kernel, and they hold its
// lock; a successor must not read around them.
absl::Status Lock(const std::string& path, int fd, uint32_t wait_ms) {
  for (uint32_t waited = 0;; waited += kLockPauseMs) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat(path, ": cannot be locked: ", Why(errno)));
    }
    if (waited >= wait_ms) {
      return absl::FailedPreconditionError(absl::StrCat(
          path,
          ": in use by another process (its lock is held): stop that daemon, or give this one "
          "another path"));
    }
    ::poll(nullptr, 0, kLockPauseMs);
  }
}

absl::Status CheckStillThere(const std::string& path, const struct stat& opened) {
  struct stat now {};
  if (::lstat(path.c_str(), &now) == 0 && now.st_ino == opened.st_ino &&
      now.st_dev == opened.st_dev) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat(path, ": was replaced while it was opened: try again"));
}

absl::Status NoRoom(const FileDeviceOptions& options, int error) {
  struct statvfs fs {};
  std::string free_text;
  if (::statvfs(std::filesystem::path(options.path).parent_path().c_str(), &fs) == 0) {
    free_text = absl::StrCat(", ", static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize, " are free");
  }
  return absl::ResourceExhaustedError(absl::StrCat(options.path, ": cannot get ", options.bytes,
                                                   " bytes: ", Why(error), free_text,
                                                   ": lower nvme.bytes or make room"));
}

// Exactly options.bytes long and, where the file system can, with its blocks reserved; else the
// reason why not.
absl::StatusOr<std::string> Allocate(const FileDeviceOptions& options, uint64_t bytes_before,
                                     int fd) {
  const auto bytes = static_cast<off_t>(options.bytes);
  if (bytes_before > options.bytes && ::ftruncate(fd, bytes) != 0) return NoRoom(options, errno);
  int error = EOPNOTSUPP;
  if (options.allow_fallocate) {
    error = EINTR;
    for (int i = 0; i < kInterruptsMax && error == EINTR; ++i) {
      error = ::fallocate(fd, 0, 0, bytes) == 0 ? 0 : errno;
    }
  }
  if (error == 0) return "";
  // A sparse file that has this length already: its pages are worth more than its full length.
  if (error == ENOSPC && bytes_before >= options.bytes) return "the file system is full";
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = ::ftruncate(fd, bytes) == 0 ? 0 : errno;
  }
  if (error != 0) {
    const absl::Status status = NoRoom(options, error);
    if (::ftruncate(fd, static_cast<off_t>(std::min(bytes_before, options.bytes))) != 0) {
      return absl::Status(status.code(), absl::StrCat(status.message(), " (and cannot be undone)"));
    }
    return status;
  }
  return "fallocate is not supported";
}

absl::Status Size(const FileDeviceOptions& options, uint64_t bytes_before, DataFile* file) {
  CRUMB_ASSIGN(const std::string why, Allocate(options, bytes_before, file->fd.get()));
  file->preallocated = why.empty();
  if (!why.empty()) {
    file->allocation_note = absl::StrCat(why, "; writes can meet a full file system");
  }
  return absl::OkStatus();
}

absl::Status CheckBlockDevice(const FileDeviceOptions& options, uint64_t bytes) {
  if (bytes >= options.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(options.path, ": the block device has ", bytes,
                                                 " bytes, ", options.bytes,
                                                 " are asked for: lower nvme.bytes"));
}

// Switches to O_DIRECT and proves it by a read; back to the page cache if either is refused.
void ProbeDirect(const FileDeviceOptions& options, DataFile* file) {
  const int fd = file->fd.get();
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return;
  const int plain = flags & ~(O_NONBLOCK | O_DIRECT);
  int error = EINVAL;
  if (options.allow_direct) error = ::fcntl(fd, F_SETFL, plain | O_DIRECT) == 0 ? 0 : errno;
  if (error == 0) {
    AlignedBuffer block(kBufferAlignment);
    if (::pread(fd, block.data(), block.size(), 0) != static_cast<ssize_t>(block.size())) {
      error = errno;
    }
  }
  file->direct = error == 0;
  if (file->direct) return;
  file->direct_note = absl::StrCat("O_DIRECT is refused: ", Why(error));
  ::fcntl(fd, F_SETFL, plain);
}

absl::Status MakeNameDurable(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const DeviceFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && ::fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(folder.string(), ": fsync: ", Why(errno)));
}

absl::Status Prepare(const FileDeviceOptions& options, const FoundFile& found, DataFile* file) {
  const int fd = file->fd.get();
  if (file->block_device) {
    CRUMB_TRY(CheckBlockDevice(options, found.bytes));
    file->preallocated = true;
  } else {
    if (found.mode != kMode && ::fchmod(fd, kMode) != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat(options.path, ": cannot be made private (mode 0600): ", Why(errno)));
    }
    file->bytes_before = found.bytes;
    CRUMB_TRY(Size(options, found.bytes, file));
    if (::fsync(fd) != 0) {
      return absl::UnavailableError(absl::StrCat(options.path, ": fsync: ", Why(errno)));
    }
    if (found.bytes == 0) CRUMB_TRY(MakeNameDurable(options.path));
  }
  ProbeDirect(options, file);
  return absl::OkStatus();
}

// Locks what was opened and says what it is.
absl::StatusOr<FoundFile> Describe(const FileDeviceOptions& options, DeviceFd fd) {
  FoundFile found;
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return OpenError(options.path, errno);
  found.block_device = S_ISBLK(info.st_mode);
  if (!S_ISREG(info.st_mode) && !found.block_device) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.path, ": is neither a regular file nor a block device"));
  }
  CRUMB_TRY(Lock(options.path, fd.get(), options.lock_wait_ms));
  // The size may have changed while another process held the lock.
  if (::fstat(fd.get(), &info) != 0) return OpenError(options.path, errno);
  CRUMB_TRY(CheckStillThere(options.path, info));
  found.mode = info.st_mode & 07777;
  found.bytes = static_cast<uint64_t>(info.st_size);
  if (found.block_device) {
    const off_t end = ::lseek(fd.get(), 0, SEEK_END);
    if (end < 0) return OpenError(options.path, errno);
    found.bytes = static_cast<uint64_t>(end);
  }
  found.fd = std::move(fd);
  return found;
}

absl::Status AskOwner(const FileDeviceOptions& options, const FoundFile& found) {
  if (options.accept == nullptr || found.bytes == 0) return absl::OkStatus();
  AlignedBuffer head(kFileHeadBytes);
  CRUMB_ASSIGN(const uint64_t have, ReadFound(options.path, found, 0, head.span()));
  const absl::Status status = options.accept(Bytes(head.data(), have));
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(options.path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<FoundFile> FindDataFile(const FileDeviceOptions& options) {
  DeviceFd fd(::open(options.path.c_str(), kOpenFlags));
  if (fd.valid()) return Describe(options, std::move(fd));
  if (errno != ENOENT) return OpenError(options.path, errno);
  return FoundFile{};
}

absl::StatusOr<uint64_t> ReadFound(const std::string& path, const FoundFile& found, uint64_t offset,
                                   MutableBytes out) {
  uint64_t have = 0;
  for (int interrupts = 0; interrupts < kInterruptsMax && have < out.size();) {
    const ssize_t got = ::pread(found.fd.get(), out.data() + have, out.size() - have,
                                static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) {
      ++interrupts;
      continue;
    }
    if (got < 0) return absl::UnavailableError(absl::StrCat(path, ": ", Why(errno)));
    if (got == 0) break;
    have += static_cast<uint64_t>(got);
  }
  return have;
}

absl::StatusOr<DataFile> TakeDataFile(const FileDeviceOptions& options, FoundFile found) {
  const bool create = !found.fd.valid();
  if (create) {
    DeviceFd fd(::open(options.path.c_str(), kOpenFlags | O_CREAT | O_EXCL, kMode));
    if (!fd.valid()) return OpenError(options.path, errno);
    absl::StatusOr<FoundFile> made = Describe(options, std::move(fd));
    if (!made.ok()) ::unlink(options.path.c_str());
    if (!made.ok()) return made.status();
    found = *std::move(made);
  }
  DataFile file;
  file.created = create;
  file.block_device = found.block_device;
  file.fd = std::move(found.fd);
  const absl::Status status = Prepare(options, found, &file);
  if (!status.ok() && create) ::unlink(options.path.c_str());
  if (!status.ok()) return status;
  return file;
}

absl::Status ResizeDataFile(const FileDeviceOptions& options, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return absl::UnavailableError(Why(errno));
  if (S_ISBLK(info.st_mode)) {
    const off_t end = ::lseek(fd, 0, SEEK_END);
    return CheckBlockDevice(options, end < 0 ? 0 : static_cast<uint64_t>(end));
  }
  CRUMB_TRY(Allocate(options, static_cast<uint64_t>(info.st_size), fd).status());
  if (::fsync(fd) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(options.path, ": fsync: ", Why(errno)));
}

absl::StatusOr<DataFile> OpenDataFile(const FileDeviceOptions& options) {
  CRUMB_ASSIGN(FoundFile found, FindDataFile(options));
  CRUMB_TRY(AskOwner(options, found));
  return TakeDataFile(options, std::move(found));
}

}  // namespace crumb
