// Finding records in a segment that has no usable footer: block by block, believing only stamps
// that fit the segment's generation and the place they lie at. Pure; start-up.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_SCAN_H_
#define CRUMB_STORAGE_SEGMENT_LOG_SCAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/types.h"
#include "storage/segment/log_format.h"

namespace crumb {

struct ScanTarget {
  uint64_t log_id = 0;
  LogSalt salt{};
  uint32_t segment = 0;
  uint32_t generation = 0;    // 0: unknown; then only tombstones, of any generation, are taken
  uint32_t begin_blocks = 0;  // where records may lie
  uint32_t end_blocks = 0;
  bool retired = false;  // its records count as tombstones of their keys
};

struct FoundRecord {
  PageHeader header;
  uint32_t offset_blocks = 0;
  uint32_t record_bytes = 0;
};

struct SegmentContents {
  std::vector<FoundRecord> records;  // in ascending order of offset, whole and exact
  std::vector<Tombstone> tombstones;
  uint32_t end_blocks = 0;  // after everything that may ever have been a record
  uint64_t sequence_max = 0;
  uint64_t bad_checksum = 0;  // stamped here, but not whole
  uint64_t bad_format = 0;    // of a newer page format
  uint64_t bad_stamp = 0;     // whole pages whose tier stamp does not verify
};

// `segment` is the whole segment from its first byte on.
SegmentContents ScanSegment(const ScanTarget& target, Bytes segment);

// The record that begins in block `at` of a retired segment, as a tombstone of its key.
std::optional<Tombstone> RetiredRecord(const ScanTarget& target, Bytes block, uint32_t at);

// The generation of the newest whole record or tombstone that lies in `segment`, by what each says
// of itself; 0: none. `target.generation` is not looked at.
uint32_t NewestGeneration(const ScanTarget& target, Bytes segment);

// The same from a sealed segment's entries. False if they contradict themselves or the segment's
// bounds. REQUIRES: EntriesMatch.
bool ReadEntries(const ScanTarget& target, const SegmentMark& mark, Bytes entries,
                 SegmentContents* out);

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_SCAN_H_
