// The daemon's block device: one regular file (or raw block device), opened, locked, preallocated
// and probed. Picks io_uring or, where the kernel refuses it, a thread pool; O_DIRECT or, where the
// file system refuses it, the page cache; and says what it picked. Start-up thread; blocking.
// PROMISE: a file that `accept` refuses, a symbolic link and a file in use by another process are
// left exactly as they were.
#ifndef CRUMB_STORAGE_DEVICE_FILE_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_FILE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "storage/device/block_device.h"

namespace crumb {

inline constexpr uint32_t kFileHeadBytes = 64 * 1024;  // what `accept` gets to see at most

struct FileDeviceOptions {
  std::string path = "";
  uint64_t bytes = 0;    // hard cap: the file gets exactly this size (multiple of 4096)
  uint32_t depth = 256;  // requests in flight, 1 to 4096
  // Called with the first bytes of a file that is not empty, before anything is changed.
  absl::Status (*accept)(Bytes head) = nullptr;
  uint32_t lock_wait_ms = 2000;  // a killed predecessor's last writes may still be under way
  uint32_t pool_threads = 4;     // of the fallback
  uint32_t merge_bytes_max = 64 * 1024;  // RingDeviceOptions
  bool allow_uring = true;               // false: as if io_uring_setup were refused
  bool allow_direct = true;              // false: as if O_DIRECT were refused
  bool allow_fallocate = true;           // false: as if fallocate were not supported
};

struct FileDevice {
  std::unique_ptr<BlockDevice> device;
  bool uring = false, direct = false, preallocated = false;
  uint64_t bytes_before = 0;  // of the file as it was found; 0: new, empty, or a block device
  std::string description;    // one line for the log: what is in use, and why anything is not
};

// FAILED_PRECONDITION: link, in use, refused by `accept`; RESOURCE_EXHAUSTED: the file system is
// too small; INVALID_ARGUMENT: options. The message names the path and the remedy.
absl::StatusOr<FileDevice> OpenFileDevice(const FileDeviceOptions& options);

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_FILE_DEVICE_H_
