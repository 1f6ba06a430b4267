// The NVMe tier's log of fixed segments, written front to back and reclaimed whole. A record is a
// page exactly as it lies in memory (header + payload, 4 KiB aligned) with its tier stamp filled
// in. One thread (the shard) owns a log; all calls are non-blocking except Open, Close and the
// destructor. docs/storage.md tells the life of a page.
// PROMISE: what Read delivers was written under that key at that location and verified since it
// left the device; anything else is kCorrupt. Losing pages is allowed, wrong bytes are not.
#ifndef CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
#define CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_

#include <atomic>
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
           dropped_format = 0, dropped_stamp = 0, recovery_us = 0, erases_lost = 0;
  uint64_t bytes_missing = 0;  // what the file lacked at Open of what its superblock says
  uint64_t segments = 0, segments_free = 0, tombstones_written = 0, times_off = 0;
  bool clean_start = false;  // the last run ended with Close
  bool enabled = true;       // false after errors_max device errors; reads still work
};

class SegmentLog {
 public:
  class RecoverySink {
   public:
    virtual ~RecoverySink() = default;
    virtual void OnRecord(const RecoveredRecord& record) = 0;
  };

  // Formats or recovers the device (blocking). FAILED_PRECONDITION: newer format, foreign data or
  // another secret, with the remedy in the message; such a device is left as it was.
  static absl::StatusOr<std::unique_ptr<SegmentLog>> Open(const SegmentLogOptions& options,
                                                          BlockDevice* device, const Clock* clock,
                                                          RecoverySink* sink);
  // OK if `head` (the first bytes of a file, up to kLogHeadBytes) is blank or a log's. For
  // FileDeviceOptions::accept, so that a foreign file is refused before it is resized.
  static absl::Status CheckHead(Bytes head);
  // 64 MiB, or less where `bytes_max` would hold fewer than 16 such segments.
  static uint32_t DefaultSegmentBytes(uint64_t bytes_max);

  struct Impl;
  explicit SegmentLog(std::unique_ptr<Impl> impl);  // use Open
  // Waits for what is in flight on the device; writes nothing more (Close does).
  ~SegmentLog();
  SegmentLog(const SegmentLog&) = delete;
  SegmentLog& operator=(const SegmentLog&) = delete;

  // Queues the page in `slot` (sealed header + payload + zero padding, kPageAlignment aligned, at
  // least PageSlotBytes). The log fills the stamp in place; the slot stays untouched until
  // kAppended. May reclaim the oldest segment (kReclaimed events). kBusy: retry after a Poll;
  // kNoSpace: larger than record_bytes_max(); kInvalid: not a page; kIo: tier off.
  BlockResult Append(MutableBytes slot, bool durable, uint64_t token);
  // Reads and verifies the record of `key`; `out` is aligned and at least record_bytes.
  // kMiss: no longer there; kBusy: retry after a Poll; kInvalid: `out` does not fit.
  BlockResult Read(const BlockKey& key, const DiskLocation& location, MutableBytes out,
                   uint64_t token);
  // The same without the pass over the payload. PROMISE kept by the caller: nothing of `out` is
  // used before VerifyRecord said kOk, on whatever thread; kCorrupt goes to ReportCorrupt.
  BlockResult ReadUnverified(const BlockKey& key, const DiskLocation& location, MutableBytes out,
                             uint64_t token);
  // Any thread. kOk or kCorrupt.
  static BlockResult VerifyRecord(Bytes record, const BlockKey& key, const DiskLocation& location);
  // Counts, forgets the record durably, and quarantines its segment after corrupt_max (which brings
  // kReclaimed for what else it held).
  void ReportCorrupt(const BlockKey& key, const DiskLocation& location);
  // Forgets the record at once; a tombstone makes it durable. token 0 = no event. Whoever drops a
  // page after kIo calls this too, or the page may come back after a restart. At no location: what
  // of `key` nobody knows of but a restart might find; kMiss: there can be nothing.
  BlockResult Erase(const BlockKey& key, const DiskLocation& location, uint64_t token);
  // Forgets everything at once (no kReclaimed); kFlushed when durable. Appends in flight end with
  // kMiss. kBusy: too many flushes in flight.
  BlockResult Flush(uint64_t token);

  // Progress. A turn is Poll, then calls (again those that were kBusy), then Submit, then maybe
  // sleep: Poll drives the device and reports events, Submit hands over what calls and Poll queued.
  size_t Poll(absl::Span<LogEvent> events);
  void Submit();
  bool idle() const;    // nothing in flight, no event left to take
  int wake_fd() const;  // the device's; readable when Poll may yield something; -1: poll
  // Seals what is open and writes a clean-shutdown mark (blocking, bounded by the device).
  absl::Status Close();
  uint64_t record_bytes_max() const;
  SegmentLogStats stats() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
