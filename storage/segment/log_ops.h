// What the running log has under way: operations on the device, erases that wait for their
// tombstone, pages to be told of, a change of size. Plain data. Included by storage/segment/*.cc
// only.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_OPS_H_
#define CRUMB_STORAGE_SEGMENT_LOG_OPS_H_

#include <cstdint>
#include <vector>

#include "storage/device/aligned_buffer.h"
#include "storage/device/block_device.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_types.h"
#include "storage/segment/record_table.h"

namespace crumb {

struct LogOps {
  enum class OpKind : uint8_t {
    kAppend,
    kRead,
    kMark,
    kSync,
    kFooter,
    kTombstones,
    kSuperblock,
    kRetire,
    kBlank,
    kCarry
  };
  struct Op {
    OpKind kind = OpKind::kRead;
    bool verify = false;
    uint64_t token = 0;
    IoRequest request;
    BlockKey key;
    DiskLocation location;  // only `segment` for the log's own operations
  };
  struct PendingErase {
    Tombstone tombstone;
    uint64_t token = 0;
    bool carried = false;  // out of a segment that is given up
  };
  struct Report {  // a reclaimed segment's pages, told bit by bit
    uint32_t segment = 0, generation = 0, cursor = 0;
    RecordList records;
  };
  struct ReadRequest {
    const BlockKey& key;
    const DiskLocation& location;
    MutableBytes out;
    uint64_t token;
    bool verify;
  };

  // Up: kBlank, kSuperblock. Down: kVacate, kCarry, kSuperblock, kGiveUp.
  enum class ResizeStep : uint8_t { kNone, kBlank, kVacate, kCarry, kSuperblock, kGiveUp };
  // Where the tombstones of the segment at the cursor are looked for.
  enum class CarryStep : uint8_t { kNext, kMark, kEntries, kScan };
  struct Resizing {
    ResizeStep step = ResizeStep::kNone;
    bool untold = false;  // its event was not taken yet
    bool failed = false;
    bool covered = false;       // by the superblock being written
    uint32_t from = 0, to = 0;  // segments
    uint32_t cursor = 0;        // the next one to blank, to carry from, to give up
    uint32_t ops = 0;           // in flight
    uint64_t token = 0, retry_us = 0;
    CarryStep carry = CarryStep::kNext;
    uint32_t scan_at = 0;  // bytes into the segment
    SegmentMark mark;
    AlignedBuffer buffer;  // zeros to be written; what was read
    std::vector<Tombstone> found;
    size_t taken = 0;      // of them
    uint32_t writing = 0;  // carried tombstones that are not stable yet
  };
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_OPS_H_
