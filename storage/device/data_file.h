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

// A file as it was found: locked, and nothing else done to it.
struct FoundFile {
  DeviceFd fd;  // holds the lock; invalid: there is no such file
  bool block_device = false;
  uint64_t bytes = 0;
  uint32_t mode = 0;
};

struct DataFile {
  DeviceFd fd;  // holds the lock
  bool block_device = false, direct = false, preallocated = false;
  bool created = false;
  uint64_t bytes_before = 0;                 // 0 also for a block device
  std::string direct_note, allocation_note;  // why not, if not
};

// The steps of OpenDataFile, for who has to look at several files before one is changed.
absl::StatusOr<FoundFile> FindDataFile(const FileDeviceOptions& options);
// How many bytes of `out` the file gave; fewer at its end.
absl::StatusOr<uint64_t> ReadFound(const std::string& path, const FoundFile& found, uint64_t offset,
                                   MutableBytes out);
// Makes it if it was not there, gives it its size. A file that was made is removed on failure.
absl::StatusOr<DataFile> TakeDataFile(const FileDeviceOptions& options, FoundFile found);

absl::StatusOr<DataFile> OpenDataFile(const FileDeviceOptions& options);

// Another length for a file that is open, as BlockDevice::Resize says. `options.bytes` is the new
// one. Any thread, one at a time; blocking.
absl::Status ResizeDataFile(const FileDeviceOptions& options, int fd);

// Of file_device: INVALID_ARGUMENT, and the device on a file that was taken.
absl::Status CheckFileOptions(const FileDeviceOptions& options);
FileDevice MakeFileDevice(const FileDeviceOptions& options, DataFile file);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_DATA_FILE_H_
