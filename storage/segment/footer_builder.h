// Collects what goes into the footer of the open segment, and lays it out. One thread (the log's);
// no allocation after construction.
#ifndef CRUMB_STORAGE_SEGMENT_FOOTER_BUILDER_H_
#define CRUMB_STORAGE_SEGMENT_FOOTER_BUILDER_H_

#include <cstdint>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/types.h"
#include "storage/device/aligned_buffer.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_geometry.h"

namespace crumb {

class FooterBuilder {
 public:
  // More tombstones than this seal a segment early, so that the footer stays small.
  static constexpr size_t kTombstonesMax = 16384;

  explicit FooterBuilder(const LogGeometry& geometry);

  void Clear();
  void AddRecord(const PageHeader& header, uint32_t offset_blocks);
  // Its write failed: it will not be in the footer.
  void DropRecord(uint32_t offset_blocks);
  void AddTombstone(const Tombstone& tombstone);

  bool empty() const { return record_count_ == 0 && tombstones_.empty(); }
  size_t tombstone_count() const { return tombstones_.size(); }
  // Bytes that footer and mark take at the segment's end, with so many more entries.
  uint64_t BytesWith(size_t more_records, size_t more_tombstones) const;

  // The last bytes of the segment: entries, padding, mark. `mark` says state, log_id, segment,
  // generation and data_end_blocks; the rest is filled in. Stays valid until Clear.
  MutableBytes Build(SegmentMark mark);

 private:
  FooterRecord* At(uint32_t index);

  AlignedBuffer buffer_;  // records as they come; Build adds the rest behind them
  uint32_t record_count_ = 0, record_capacity_ = 0;
  std::vector<Tombstone> tombstones_;  // capacity kTombstonesMax
  uint64_t sequence_max_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_FOOTER_BUILDER_H_
