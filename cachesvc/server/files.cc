// Durable small files. Any thread; blocking.
#include "cachesvc/server/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kDirectoryMode = 0700;
constexpr char kTemporary[] = ".tmp";

bool PlainName(const std::string& name) {
  return !name.empty() && name.size() <= 128 && name != "." && name != ".." &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::Status CheckOwned(int fd, const std::string& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return FileError(path, "fstat", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a regular file: move it away"));
  }
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": owned by uid ", info.st_uid,
                                                      ", not by this daemon's ", geteuid(),
                                                      ": chown it, or run as its owner"));
  }
  if ((info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": others may write it: chmod 600"));
  }
  return absl::OkStatus();
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.Release();
  }
  return *this;
}

absl::Status FileError(const std::string& path, absl::string_view what, int error) {
  const std::string message = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": free space on its volume"));
    case ELOOP:
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is a symbolic link: put the file itself there"));
    default:
      return absl::FailedPreconditionError(message);
  }
}

absl::Status WriteAll(int fd, Bytes data, const std::string& path) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = write(fd, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return FileError(path, "write", wrote < 0 ? errno : EIO);
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

absl::StatusOr<Directory> Directory::Open(const std::string& path) {
  Directory directory;
  directory.path_ = path;
  if (mkdir(path.c_str(), kDirectoryMode) == 0) {
    directory.made_ = true;
  } else if (errno != EEXIST) {
    return FileError(path, "mkdir", errno);
  }
  directory.fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.fd_.valid()) return FileError(path, "open", errno);
  return directory;
}

absl::StatusOr<Directory> Directory::Sub(const std::string& name) const {
  CRUMB_CHECK(PlainName(name));
  Directory directory;
  directory.path_ = absl::StrCat(path_, "/", name);
  if (mkdirat(fd(), name.c_str(), kDirectoryMode) == 0) {
    directory.made_ = true;
    CRUMB_TRY(Sync());
  } else if (errno != EEXIST) {
    return FileError(directory.path_, "mkdir", errno);
  }
  directory.fd_ =
      UniqueFd(openat(fd(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.fd_.valid()) return FileError(directory.path_, "open", errno);
  return directory;
}

absl::StatusOr<UniqueFd> Directory::OpenFile(const std::string& name, int flags) const {
  CRUMB_CHECK(PlainName(name));
  const std::string path = absl::StrCat(path_, "/", name);
  UniqueFd file(openat(fd(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, kFileMode));
  if (!file.valid()) return FileError(path, "open", errno);
  CRUMB_TRY(CheckOwned(file.get(), path));
  return file;
}

absl::StatusOr<std::string> Directory::Read(const std::string& name, uint64_t bytes_max) const {
  const std::string path = absl::StrCat(path_, "/", name);
  CRUMB_ASSIGN(const UniqueFd file, OpenFile(name, O_RDONLY));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return FileError(path, "fstat", errno);
  if (static_cast<uint64_t>(info.st_size) > bytes_max) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", info.st_size, " bytes, over the limit of ", bytes_max));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t got = read(file.get(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, "read", errno);
    if (got == 0) break;  // shorter than it was a moment ago; its checksum will tell
    have += static_cast<size_t>(got);
  }
  content.resize(have);
  return content;
}

absl::Status Directory::Replace(const std::string& name, Bytes content) const {
  CRUMB_CHECK(PlainName(name));
  const std::string temporary = name + kTemporary;
  const std::string path = absl::StrCat(path_, "/", temporary);
  unlinkat(fd(), temporary.c_str(), 0);  // left by a crash
  {
    CRUMB_ASSIGN(const UniqueFd file, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL));
    absl::Status written = WriteAll(file.get(), content, path);
    if (written.ok() && fsync(file.get()) != 0) written = FileError(path, "fsync", errno);
    if (!written.ok()) {
      unlinkat(fd(), temporary.c_str(), 0);
      return written;
    }
  }
  if (renameat(fd(), temporary.c_str(), fd(), name.c_str()) != 0) {
    const int error = errno;
    unlinkat(fd(), temporary.c_str(), 0);
    return FileError(path, "rename", error);
  }
  return Sync();
}

absl::Status Directory::Create(const std::string& name, Bytes content) const {
  CRUMB_CHECK(PlainName(name));
  struct stat info {};
  if (fstatat(fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(path_, "/", name, ": exists"));
  }
  return Replace(name, content);
}

absl::Status Directory::Remove(const std::string& name) const {
  CRUMB_CHECK(PlainName(name));
  if (unlinkat(fd(), name.c_str(), 0) != 0 && errno != ENOENT) {
    return FileError(absl::StrCat(path_, "/", name), "unlink", errno);
  }
  return Sync();
}

absl::Status Directory::Sync() const {
  if (fsync(fd()) != 0) return FileError(path_, "fsync", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Directory::List(size_t count_max) const {
  const int copy = openat(fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return FileError(path_, "open", errno);
  DIR* stream = fdopendir(copy);
  if (stream == nullptr) {
    const int error = errno;
    close(copy);
    return FileError(path_, "fdopendir", error);
  }
  std::vector<std::string> names;
  while (names.size() < count_max) {
    const dirent* entry = readdir(stream);
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace crumb
