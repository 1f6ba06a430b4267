// Prepares a unix socket's path. Start-up thread; blocking.
#include "cachesvc/server/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/server/data_dir.h"

namespace crumb {
namespace {

absl::Status CheckFolder(const Directory& folder) {
  struct stat info {};
  if (fstat(folder.fd(), &info) != 0) return FileError(folder.path(), "fstat", errno);
  const bool trusted_owner = info.st_uid == geteuid() || info.st_uid == 0;
  const bool open = (info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0;
  if (!trusted_owner || open) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder.path(),
                     ": others may replace what is in it: chmod 700 it, or set "
                     "another listen.socket"));
  }
  return absl::OkStatus();
}

// True if somebody accepts connections there.
absl::StatusOr<bool> SomebodyListens(const std::string& path) {
  const UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!client.valid()) return FileError(path, "socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": too long"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  if (connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return true;
  }
  if (errno == ECONNREFUSED || errno == ENOENT) return false;
  return true;  // EAGAIN: its queue is full; EACCES: not ours to remove
}

}  // namespace

absl::StatusOr<SocketPlace> PrepareSocket(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string parent = slash == 0 ? "/" : path.substr(0, slash);
  const std::string name = path.substr(slash + 1);
  CRUMB_ASSIGN(const Directory folder, Directory::Open(parent));
  CRUMB_TRY(CheckFolder(folder));
  SocketPlace place{.lock = {}, .path = path};
  absl::StatusOr<UniqueFd> lock = LockFile(folder, absl::StrCat(name, ".lock"));
  if (!lock.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", std::string(lock.status().message()),
                     ": stop that one, or set another listen.socket"));
  }
  place.lock = *std::move(lock);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return place;
    return FileError(path, "stat", errno);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": exists and is no socket: move it away"));
  }
  CRUMB_ASSIGN(const bool taken, SomebodyListens(path));
  if (taken) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": another process listens there: stop it, or set another listen.socket"));
  }
  if (unlink(path.c_str()) != 0) return FileError(path, "unlink", errno);
  return place;
}

}  // namespace crumb
