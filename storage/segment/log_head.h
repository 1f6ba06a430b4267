// The head of a log: whose file it is, and its superblock. Start-up; blocking where a device is
// given. PROMISE: what is not ours, or of a newer format, is only read.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_HEAD_H_
#define CRUMB_STORAGE_SEGMENT_LOG_HEAD_H_

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "storage/device/block_device.h"
#include "storage/segment/log_format.h"
#include "storage/segment/segment_log.h"

namespace crumb {

struct LogHead {
  bool blank = false;     // never formatted, or a formatting that was cut short
  Superblock superblock;  // the newer valid copy, unless blank
};

// FAILED_PRECONDITION with the remedy: foreign, or of a newer format. `head` may be shorter than
// kLogHeadBytes (a short file).
absl::StatusOr<LogHead> ParseHead(Bytes head);

// The superblock of the log on `device`: formats a blank device, refuses one that is foreign, of
// another secret or segment size. The superblock on the device is left as it was found, except by
// formatting.
absl::StatusOr<Superblock> OpenHead(const SegmentLogOptions& options, BlockDevice* device);

// Writes both copies, one after the other, so that one is always whole. Raises the revision.
absl::Status WriteSuperblock(BlockDevice* device, Superblock* superblock);

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_HEAD_H_
