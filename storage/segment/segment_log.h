// The NVMe tier's log of fixed segments, written front to back and reclaimed whole. A record is a
// page exactly as it lies in memory (header + payload, 4 KiB aligned) with its tier stamp filled
// in. One thread (the shard) owns a log; all calls are non-blocking except Open, Close and the
// destructor. docs/storage.md tells the life of a page.
// PROMISE: what Read delivers was written under that key at that location and verified since it
// left the device; anything else is kCorrupt. Losing pages is allowed, wrong bytes are not.
#ifndef CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
#define CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "storage/device/block_device.h"
#include "storage/segment/log_types.h"

namespace crumb {

class SegmentLog {
 public:
  class RecoverySink {
   public:
    virtual ~RecoverySink() = default;
    // First of all: about so many will come. A hint.
    virtual void Expect(uint64_t records) = 0;
    // A few at a time, so that the listener may look several up at once.
    virtual void OnRecords(absl::Span<const RecoveredRecord> records) = 0;
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

  // Another size: as many segments as fit into `bytes`, at least four, of a device that is at least
  // as large, before and until kResized. Down: the pages behind the new end are given up
  // (kReclaimed each), and once kResized came nothing behind it is touched any more. kBusy: another
  // change is under way; kInvalid: no such size. A change down that cannot be made durable is tried
  // until it can.
  BlockResult Resize(uint64_t bytes, uint64_t token);

  // Live records of a sealed segment, from `offset_blocks` on, in their order; none of any other.
  size_t Records(uint32_t segment, uint32_t offset_blocks, absl::Span<LogRecord> out) const;
  // The segment whose turn to be written over is next; none while others are free.
  std::optional<DiskLocation> NextReclaimed() const;

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
  // What it counts, without the sums over all segments: capacity, what is used, records, segments.
  const SegmentLogStats& counts() const;
  uint32_t segment_count() const;
  uint32_t segment_bytes() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_SEGMENT_LOG_H_
