// Opening the file under a device: no links, mode 0600, locked against a second daemon, checked by
// its owner before it is touched, sized, preallocated, probed for O_DIRECT. Start-up; blocking.
#ifndef CRUMB_STORAGE_DEVICE_DATA_FILE_H_
#define CRUMB_STORAGE_DEVICE_DATA_FILE_H_

#include <cstdint>
#include <string>

#include "cachesvc/base/status.h"
#include "storage/device/device_fd.h"
#include "storage/device/file_device.h"

namespace crumb {

struct DataFile {
  DeviceFd fd;  // holds the lock
  bool block_device = false, direct = false, preallocated = false;
  uint64_t bytes_before = 0;                 // 0 also for a block device
  std::string direct_note, allocation_note;  // why not, if not
};

absl::StatusOr<DataFile> OpenDataFile(const FileDeviceOptions& options);

// Another length for a file that is open, as BlockDevice::Resize says. `options.bytes` is the new
// one. Any thread, one at a time; blocking.
absl::Status ResizeDataFile(const FileDeviceOptions& options, int fd);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_DATA_FILE_H_
