// Of the records that a recovery meets, newest first, those that count: the first one met of a key,
// unless a flush or a tombstone is younger. Knows keys, not places. Start-up; one thread.
#ifndef CRUMB_STORAGE_SEGMENT_LIVE_RECORDS_H_
#define CRUMB_STORAGE_SEGMENT_LIVE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cachesvc/base/types.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_scan.h"

namespace crumb {

class LiveRecords {
 public:
  // `watermark`: records of a lower sequence are dead.
  explicit LiveRecords(uint64_t watermark) : watermark_(watermark) {}

  // Room for so many keys at once.
  void Reserve(uint64_t keys) { seen_.reserve(keys); }
  // REQUIRES: before any record that it kills.
  void Bury(const Tombstone& tombstone);
  // Takes the dead out of one segment's records; the others stay in order. How many went.
  // REQUIRES: Filter of all younger segments.
  size_t Filter(std::vector<FoundRecord>* records);

 private:
  bool IsLive(const FoundRecord& record);

  const uint64_t watermark_;
  absl::flat_hash_map<BlockKey, uint64_t, BlockKeyHash> tombstones_;  // their highest sequence
  absl::flat_hash_set<BlockKey, BlockKeyHash> seen_;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LIVE_RECORDS_H_
