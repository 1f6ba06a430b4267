// Files below one directory, opened by name and nothing else: no path of outside origin, no link is
// followed, everything is 0600 and durable when a function returns. Any thread; blocking.
#ifndef CRUMB_CACHESVC_SERVER_FILES_H_
#define CRUMB_CACHESVC_SERVER_FILES_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd();
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// One directory of ours.
class Directory {
 public:
  // Opens it; makes the last component (0700) if it is absent.
  static absl::StatusOr<Directory> Open(const std::string& path);
  // A folder below this one, made (0700) if absent.
  absl::StatusOr<Directory> Sub(const std::string& name) const;

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  bool made() const { return made_; }

  // A regular file of ours that nobody else may write; NOT_FOUND if absent; FAILED_PRECONDITION
  // for links, foreign owners and files over `bytes_max`, with the remedy.
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t bytes_max) const;
  absl::StatusOr<UniqueFd> OpenFile(const std::string& name, int flags) const;
  // All or nothing, also over a crash: temporary file, fsync, rename, fsync of the directory.
  absl::Status Replace(const std::string& name, Bytes content) const;
  // The same, but an existing file stays as it is (ALREADY_EXISTS).
  absl::Status Create(const std::string& name, Bytes content) const;
  absl::Status Remove(const std::string& name) const;
  absl::Status Sync() const;
  // Names of what is here, of any kind, sorted; at most `count_max`.
  absl::StatusOr<std::vector<std::string>> List(size_t count_max) const;

 private:
  std::string path_;
  UniqueFd fd_;
  bool made_ = false;
};

// Writes all of `data`, restarting after signals and short counts.
absl::Status WriteAll(int fd, Bytes data, const std::string& path);
// "path: reason"; the code tells full disks (RESOURCE_EXHAUSTED) from the rest.
absl::Status FileError(const std::string& path, absl::string_view what, int error);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_FILES_H_
