// Reads a whole file of bounded size, by descriptor, so that what was measured is what is read.
#include "gpu/codec/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

absl::Status Refuse(const std::string& path, int error) {
  std::string message = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path, uint64_t bytes_max) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Refuse(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes; at most ", bytes_max, " are read"));
  }
  std::string data(size, '\0');
  uint64_t done = 0;
  while (done < size) {
    const ssize_t got = read(fd, data.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Refuse(path, errno);
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": became shorter while it was read"));
    }
    done += static_cast<uint64_t>(got);
  }
  return data;
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max) {
  // O_NONBLOCK: opening a FIFO must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Refuse(path, errno);
  absl::StatusOr<std::string> data = ReadAll(fd, path, bytes_max);
  close(fd);
  return data;
}

}  // namespace crumb
