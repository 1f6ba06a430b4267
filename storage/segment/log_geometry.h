// Where things lie in a log of `segment_count` segments of `segment_bytes`. Pure.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_GEOMETRY_H_
#define CRUMB_STORAGE_SEGMENT_LOG_GEOMETRY_H_

#include <cstdint>

#include "storage/segment/log_format.h"

namespace crumb {

struct LogGeometry {
  uint32_t segment_bytes = 0;
  uint32_t segment_count = 0;

  static constexpr uint64_t RoundUp(uint64_t bytes) {
    return (bytes + kLogBlock - 1) / kLogBlock * kLogBlock;
  }
  uint64_t Offset(uint32_t segment) const { return uint64_t{segment} * segment_bytes; }
  uint64_t MarkOffset(uint32_t segment) const {
    return Offset(segment) + segment_bytes - kLogBlock;
  }
  uint64_t EntriesOffset(uint32_t segment, uint64_t entries_bytes) const {
    return MarkOffset(segment) - RoundUp(entries_bytes);
  }
  // Records lie in blocks [DataBegin, DataEnd) of a segment, as long as the footer leaves room.
  uint32_t DataBegin(uint32_t segment) const {
    return segment == 0 ? kLogHeadBytes / kLogBlock : 0;
  }
  uint32_t DataEnd() const { return segment_bytes / kLogBlock - 1; }
  uint32_t BlocksMax() const { return segment_bytes / kLogBlock; }
  // The largest record that fits in any segment, with a footer of one entry.
  uint64_t RecordBytesMax() const {
    return uint64_t{segment_bytes} - kLogHeadBytes - 2 * kLogBlock;
  }
  uint64_t CapacityBytes() const {
    return uint64_t{segment_count} * (segment_bytes - kLogBlock) - kLogHeadBytes;
  }
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_GEOMETRY_H_
