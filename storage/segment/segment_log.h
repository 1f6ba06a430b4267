// The NVMe tier's log of fixed segments, written front to back and reclaimed whole. A record is a
// page exactly as it lies in memory (header + payload, 4 KiB aligned) with its tier stamp filled
// in. One thread (the shard) owns a log; all calls are non-blocking except Open and Close.
// PROMISE: what Read delivers was written under that key at that location and verified since it
// left the device; anything else is kCorrupt. Losing pages is allowed, wrong bytes are not.
#ifndef CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
#define CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "storage/device/block_device.h"

namespace crumb {

struct DiskLocation {
  uint32_t segment = 0;
  uint32_t generation = 0;     // 0 = nowhere
  uint32_t offset_blocks = 0;  // of kPageAlignment, within the segment
  uint32_t record_bytes = 0;   // slot bytes, multiple of kPageAlignment
  friend bool operator==(const DiskLocation&, const DiskLocation&) = default;
};

struct SegmentLogOptions {
  uint64_t bytes_max = 0;  // hard cap, metadata included
  uint32_t segment_bytes = 64u << 20;
  uint64_t secret_fingerprint = 0;
  uint32_t reads_max = 64;    // in flight
  uint32_t appends_max = 64;  // in flight
  uint32_t errors_max = 16;   // device errors until the tier turns itself off
};

enum class LogEventKind : uint8_t {
  kAppended,   // token's append completed (durable if asked)
  kRead,       // token's read completed and verified
  kReclaimed,  // the page of `key` at `location` is gone: its segment is being reused
  kFlushed,    // token's Flush is durable
  kErased,     // token's Erase is durable (only if a token was given)
};

struct LogEvent {
  LogEventKind kind = LogEventKind::kRead;
  BlockResult result = BlockResult::kOk;  // kOk, kCorrupt, kIo, kMiss (stale location), kNoSpace
  uint64_t token = 0;
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
  uint64_t checksum_failures = 0, segments_quarantined = 0, segments_reclaimed = 0;
  uint64_t recovered = 0, dropped_torn = 0, dropped_checksum = 0, dropped_stale = 0,
           dropped_format = 0, recovery_us = 0;
  bool enabled = true;  // false after errors_max device errors
};

class SegmentLog {
 public:
  class RecoverySink {
   public:
    virtual ~RecoverySink() = default;
    virtual void OnRecord(const RecoveredRecord& record) = 0;
  };

  // Formats or recovers the device (blocking). FAILED_PRECONDITION: newer format, foreign data or
  // another secret, with the remedy in the message.
  static absl::StatusOr<std::unique_ptr<SegmentLog>> Open(const SegmentLogOptions& options,
                                                          BlockDevice* device, const Clock* clock,
                                                          RecoverySink* sink);
  virtual ~SegmentLog() = default;

  // Queues the page in `slot` (header + payload + zero padding, kPageAlignment aligned and
  // sized). The log fills the stamp in place; the slot stays untouched until kAppended. May
  // reclaim the oldest segment (kReclaimed events). kBusy: retry later; kNoSpace; kIo: tier off.
  virtual BlockResult Append(MutableBytes slot, bool durable, uint64_t token) = 0;
  // Reads and verifies the record of `key`; `out` is aligned and at least record_bytes.
  virtual BlockResult Read(const BlockKey& key, const DiskLocation& location, MutableBytes out,
                           uint64_t token) = 0;
  // Forgets the record at once; a tombstone makes it durable. token 0 = no event.
  virtual BlockResult Erase(const BlockKey& key, const DiskLocation& location, uint64_t token) = 0;
  // Forgets everything: raises the flush watermark; kFlushed when durable.
  virtual BlockResult Flush(uint64_t token) = 0;

  // Progress. Poll drives the device and reports events; Submit hands queued work over.
  virtual size_t Poll(absl::Span<LogEvent> events) = 0;
  virtual void Submit() = 0;
  virtual bool idle() const = 0;
  // Seals what is open and writes a clean-shutdown mark (blocking, bounded by the device).
  virtual absl::Status Close() = 0;
  virtual SegmentLogStats stats() const = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
