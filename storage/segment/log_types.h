// What the segment log and its users say to each other: places, options, events, counts. Plain
// data.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_TYPES_H_
#define CRUMB_STORAGE_SEGMENT_LOG_TYPES_H_

#include <atomic>
#include <cstdint>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct DiskLocation {
  uint32_t segment = 0;
  uint32_t generation = 0;     // 0 = nowhere
  uint32_t offset_blocks = 0;  // of kPageAlignment, within the segment
  uint32_t record_bytes = 0;   // slot bytes, multiple of kPageAlignment
  friend bool operator==(const DiskLocation&, const DiskLocation&) = default;
};

struct SegmentLogOptions {
  uint64_t bytes_max = 0;      // hard cap, metadata included
  uint32_t segment_bytes = 0;  // power of two, 1 MiB to 256 MiB; at least 4 must fit; 0: as it is
  uint64_t secret_fingerprint = 0;    // of the cluster secret; another one is refused
  uint64_t bytes_present = 0;         // of the file before it got its full length; 0 = all
  uint64_t format_seed = 0;           // identity of a new log; 0 = the kernel's random source
  uint32_t reads_max = 64;            // in flight, until their event was taken
  uint32_t appends_max = 64;          // in flight, until their event was taken
  uint32_t erases_max = 1024;         // in flight, until durable (and their event was taken)
  uint32_t errors_max = 16;           // device errors until the tier turns itself off
  uint32_t corrupt_max = 4;           // bad records until a segment is quarantined
  uint64_t retry_off_us = 2'000'000;  // a tier that is off tries one append again after this
  // Set by another thread: Open ends soon with CANCELLED and leaves the device as it was.
  const std::atomic<bool>* stop = nullptr;
};

enum class LogEventKind : uint8_t {
  kAppended,   // token's append completed (durable if asked)
  kRead,       // token's read completed; verified unless ReadUnverified was asked for
  kReclaimed,  // the page of `key` at `location` is gone: its segment is being reused
  kFlushed,    // token's Flush is durable
  kResized,    // token's Resize is durable
  kErased,     // token's Erase is durable (only if a token was given)
};

struct LogEvent {
  LogEventKind kind = LogEventKind::kRead;
  BlockResult result = BlockResult::kOk;  // kOk, kCorrupt, kIo, kMiss (stale location), kNoSpace
  bool verified = false;  // kRead: VerifyRecord said kOk; false = the caller still must ask it
  uint64_t token = 0;
  BlockKey key;
  DiskLocation location;
};

// A record that can be read.
struct LogRecord {
  BlockKey key;
  DiskLocation location;
};

// A live record found by recovery, newest for its key; header fields without payload.
struct RecoveredRecord {
  PageHeader header;
  DiskLocation location;
};

struct SegmentLogStats {
  uint64_t capacity_bytes = 0, used_bytes = 0, records = 0;
  uint64_t bytes_written = 0, bytes_read = 0, append_errors = 0, read_errors = 0;
  uint64_t no_space_errors = 0;  // of append_errors: the file system was full
  uint64_t bytes_issued = 0;     // of all writes, also those in flight and those that failed
  uint64_t checksum_failures = 0, segments_quarantined = 0, segments_reclaimed = 0;
  uint64_t recovered = 0, dropped_torn = 0, dropped_checksum = 0, dropped_stale = 0,
           dropped_format = 0, dropped_stamp = 0, recovery_us = 0, erases_lost = 0;
  uint64_t bytes_missing = 0;  // what the file lacked at Open of what its superblock says
  uint64_t segments = 0, segments_free = 0, tombstones_written = 0, times_off = 0;
  uint64_t erases_begun = 0, erases_ended = 0;  // of tombstones, in one order
  uint64_t reclaims_ended = 0;  // of segments_reclaimed: stable, or their write failed
  bool retiring = false;        // pages of a quarantined segment may still be found by a start
  bool head_lost = false;    // what was flushed or reclaimed may come back: its write failed so far
  bool clean_start = false;  // the last run ended with Close
  bool enabled = true;       // false after errors_max device errors; reads still work
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_TYPES_H_
