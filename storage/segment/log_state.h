// What a log knows about itself in memory: made by recovery, then owned by the running log. Plain
// data; one thread.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_STATE_H_
#define CRUMB_STORAGE_SEGMENT_LOG_STATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "storage/device/index_queue.h"
#include "storage/segment/footer_builder.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_geometry.h"
#include "storage/segment/record_table.h"
#include "storage/segment/segment_log.h"

namespace crumb {

inline constexpr uint32_t kNoSegment = 0xffffffff;

enum class SegmentState : uint8_t {
  kFree,      // in `free`
  kDraining,  // its pages are gone; becomes free once nothing in flight touches it
  kMarking,   // its mark for a new generation is being written
  kReady,     // marked, empty: the next to open
  kOpen,      // takes appends
  kSealing,   // full: waits for its appends, a sync and its footer
  kSealed,    // read-only; in `order`
};

struct LogSegment {
  SegmentState state = SegmentState::kFree;
  uint32_t generation = 0;   // of what can be read; 0: nothing
  uint32_t used_blocks = 0;  // up to where it is filled
  RecordList records;
  uint64_t live_bytes = 0;
  uint32_t live_records = 0;
  uint32_t reads = 0, writes = 0;  // in flight; writes of records only
  uint32_t tombstones = 0;         // that lie in it on the medium, at most
  uint32_t corrupt = 0;            // records that did not verify
  bool meta_busy = false;          // a mark, sync or footer of it is in flight
  bool sealed_on_disk = false;
  bool quarantine = false;  // wanted: too many records did not verify
};

struct LogState {
  LogState(const SegmentLogOptions& options_in, const LogGeometry& geometry_in);

  SegmentLogOptions options;
  LogGeometry geometry;
  Superblock superblock;
  std::vector<LogSegment> segments;
  RecordTable table;
  IndexQueue free;   // segments without pages
  IndexQueue order;  // segments with pages (open ones too), oldest first
  uint32_t open = kNoSegment, ready = kNoSegment;
  std::array<FooterBuilder, 2> builders;
  uint32_t builder = 0;  // of the open segment; the other one's is being written
  uint64_t next_sequence = 1;
  uint32_t next_generation = 1;
  SegmentLogStats stats;

  FooterBuilder& footer() { return builders[builder]; }
  // REQUIRES: segments that go hold nothing and are in no queue.
  void SetSegmentCount(uint32_t count);
};

// Formats the device, or finds what an earlier run left on it. Start-up; blocking.
absl::StatusOr<std::unique_ptr<LogState>> RecoverLog(const SegmentLogOptions& options,
                                                     BlockDevice* device,
                                                     SegmentLog::RecoverySink* sink);

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_STATE_H_
