// A block device over a file, detached at the end. Needs root and loop devices: path() is empty
// where this process may not have one, or not with such sectors. One thread.
#ifndef CRUMB_TESTS_SUPPORT_LOOP_DEVICE_H_
#define CRUMB_TESTS_SUPPORT_LOOP_DEVICE_H_

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace crumb {

class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file, uint32_t sector_bytes = 512) {
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    const int number = control < 0 ? -1 : ::ioctl(control, LOOP_CTL_GET_FREE);
    if (control >= 0) ::close(control);
    if (number < 0) return;
    const std::string path = "/dev/loop" + std::to_string(number);
    const int backing = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    attached_ = fd_ >= 0 && backing >= 0 && ::ioctl(fd_, LOOP_SET_FD, backing) == 0;
    if (backing >= 0) ::close(backing);
    int sector = 0;
    if (attached_ && sector_bytes != 512) ::ioctl(fd_, LOOP_SET_BLOCK_SIZE, sector_bytes);
    if (attached_ && ::ioctl(fd_, BLKSSZGET, &sector) == 0 &&
        static_cast<uint32_t>(sector) == sector_bytes) {
      path_ = path;
    }
  }
  ~LoopDevice() {
    if (attached_) ::ioctl(fd_, LOOP_CLR_FD, 0);
    if (fd_ >= 0) ::close(fd_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  const std::string& path() const { return path_; }

 private:
  int fd_ = -1;
  bool attached_ = false;
  std::string path_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_SUPPORT_LOOP_DEVICE_H_
