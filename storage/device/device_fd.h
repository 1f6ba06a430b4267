// Owns a file descriptor. Any thread; never closes twice.
#ifndef CRUMB_STORAGE_DEVICE_DEVICE_FD_H_
#define CRUMB_STORAGE_DEVICE_DEVICE_FD_H_

#include <unistd.h>

#include <utility>

namespace crumb {

class DeviceFd {
 public:
  DeviceFd() = default;
  explicit DeviceFd(int fd) : fd_(fd) {}
  DeviceFd(DeviceFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DeviceFd& operator=(DeviceFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~DeviceFd() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_DEVICE_FD_H_
