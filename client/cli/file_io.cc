// Files over POSIX calls: short reads and EINTR are continued.
#include "client/cli/file_io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crumb::cli {
namespace {

constexpr size_t kStepBytes = 1 << 20;

absl::Status FileError(const std::string& path, absl::string_view verb) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be ", verb, ": ", std::strerror(errno)));
}

absl::Status WriteAll(int fd, Bytes content, const std::string& path) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote =
        ::write(fd, content.data() + done, std::min(kStepBytes, content.size() - done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return FileError(path, "written");
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

// Reads to the end or to one byte past the bound.
absl::StatusOr<std::string> ReadAll(int fd, uint64_t bytes_max, const std::string& path) {
  std::string content;
  while (content.size() <= bytes_max) {
    const size_t before = content.size();
    content.resize(before + std::min<uint64_t>(kStepBytes, bytes_max + 1 - before));
    const ssize_t got = ::read(fd, content.data() + before, content.size() - before);
    if (got < 0 && errno == EINTR) {
      content.resize(before);
      continue;
    }
    if (got < 0) return FileError(path, "read");
    content.resize(before + static_cast<size_t>(got));
    if (got == 0) return content;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": larger than the ", bytes_max, " bytes allowed here"));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  if (path == "-") return ReadAll(STDIN_FILENO, bytes_max, "standard input");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "read");
  absl::StatusOr<std::string> content = ReadAll(fd, bytes_max, path);
  ::close(fd);
  return content;
}

absl::Status WriteFile(const std::string& path, Bytes content) {
  if (path == "-") return WriteAll(STDOUT_FILENO, content, "standard output");
  struct stat info {};
  // WHY: a device or a pipe is written in place; only regular files can be replaced by a rename.
  const bool special = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const std::string target = special ? path : absl::StrCat(path, ".tmp", ::getpid());
  const int fd =
      ::open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (special ? 0 : O_EXCL), 0666);
  if (fd < 0) return FileError(path, "written");
  absl::Status status = WriteAll(fd, content, path);
  if (::close(fd) != 0 && status.ok()) status = FileError(path, "written");
  if (special) return status;
  if (status.ok() && std::rename(target.c_str(), path.c_str()) != 0) {
    status = FileError(path, "written");
  }
  if (!status.ok()) ::unlink(target.c_str());
  return status;
}

bool ReaderIsGone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

}  // namespace crumb::cli
