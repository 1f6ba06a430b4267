// Makes and locks the data directory. Start-up thread; blocking.
#include "cachesvc/server/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace crumb {
namespace {

constexpr char kLockName[] = "lock";
constexpr size_t kEntriesMax = 64;
constexpr int kParentsMax = 64;

// The pid that the holder wrote; 0 if it is not readable.
pid_t HolderOf(int fd) {
  std::array<char, 32> text{};
  const ssize_t got = pread(fd, text.data(), text.size() - 1, 0);
  pid_t pid = 0;
  if (got <= 0) return 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text.data()), &pid)) return 0;
  return pid;
}

absl::Status CheckOwner(const std::string& path, const struct stat& info) {
  if (info.st_uid == geteuid() || info.st_uid == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": owned by uid ", info.st_uid,
                                                    ", not by this daemon's ", geteuid(),
                                                    ": chown it, or set another data_dir"));
}

absl::Status MakeParents(const std::string& path) {
  size_t slash = 0;
  for (int depth = 0; depth < kParentsMax; ++depth) {
    slash = path.find('/', slash + 1);
    if (slash == std::string::npos) return absl::OkStatus();
    const std::string parent = path.substr(0, slash);
    if (mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST && errno != EACCES && errno != EROFS) {
      return FileError(parent, "mkdir", errno);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": too many folders"));
}

}  // namespace

absl::StatusOr<UniqueFd> LockFile(const Directory& directory, const std::string& name) {
  CRUMB_ASSIGN(UniqueFd file, directory.OpenFile(name, O_RDWR | O_CREAT));
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return FileError(absl::StrCat(directory.path(), "/", name), "flock", errno);
    }
    const pid_t pid = HolderOf(file.get());
    return absl::FailedPreconditionError(
        pid > 0 ? absl::StrCat("in use by another crumbd (pid ", pid, ")")
                : "in use by another crumbd");
  }
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return FileError(absl::StrCat(directory.path(), "/", name), "write", errno);
  }
  return file;
}

absl::Status ProbeDataDir(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) return FileError(path, "open", ENOTDIR);
    CRUMB_TRY(CheckOwner(path, info));
    std::string probe = absl::StrCat(path, "/.probe.XXXXXX");
    const UniqueFd file(mkstemp(probe.data()));
    if (!file.valid()) return FileError(path, "making a file in it", errno);
    unlink(probe.c_str());
    return absl::OkStatus();
  }
  if (errno != ENOENT) return FileError(path, "stat", errno);
  // The first folder that is missing says it for all below it.
  size_t slash = 0;
  for (int depth = 0; depth < kParentsMax && slash != std::string::npos; ++depth) {
    slash = path.find('/', slash + 1);
    const std::string folder = path.substr(0, slash);
    if (mkdir(folder.c_str(), 0700) == 0) {
      rmdir(folder.c_str());
      return absl::OkStatus();
    }
    if (stat(folder.c_str(), &info) != 0) return FileError(folder, "mkdir", errno);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": too many folders"));
}

absl::StatusOr<DataDir> DataDir::Open(const std::string& path) {
  CRUMB_TRY(MakeParents(path));
  DataDir data;
  CRUMB_ASSIGN(data.directory_, Directory::Open(path));
  struct stat info {};
  if (fstat(data.directory_.fd(), &info) != 0) return FileError(path, "fstat", errno);
  CRUMB_TRY(CheckOwner(path, info));
  const bool ours = faccessat(data.directory_.fd(), kLockName, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  absl::StatusOr<UniqueFd> lock = LockFile(data.directory_, kLockName);
  if (!lock.ok()) {
    return absl::Status(lock.status().code(),
                        absl::StrCat(path, ": ", lock.status().message(),
                                     ": stop that one, or set another data_dir"));
  }
  data.lock_ = *std::move(lock);
  if ((info.st_mode & 077) == 0) return data;
  // WHY not always: data_dir may be mistyped, and /etc must not become private.
  CRUMB_ASSIGN(const std::vector<std::string> names, data.directory_.List(kEntriesMax));
  bool empty = true;
  for (const std::string& name : names)
    empty = empty && (name == kLockName || name == "lost+found");
  if ((ours || empty) && info.st_uid == geteuid()) {
    if (fchmod(data.directory_.fd(), 0700) != 0) return FileError(path, "chmod", errno);
    data.notes_.push_back(absl::StrCat(path, ": was open to others; now 0700"));
  } else {
    data.notes_.push_back(
        absl::StrCat(path, ": other users may enter it, and it holds other files: chmod 700 it"));
  }
  return data;
}

}  // namespace crumb
