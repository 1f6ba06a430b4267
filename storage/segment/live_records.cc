// See live_records.h. Start-up.
#include "storage/segment/live_records.h"

#include <algorithm>

namespace crumb {
namespace {

constexpr size_t kKeysAhead = 16;  // under way from memory while others are dealt with

}  // namespace

void LiveRecords::Bury(const Tombstone& tombstone) {
  uint64_t& sequence = tombstones_[tombstone.key];
  sequence = std::max(sequence, tombstone.log_sequence);
}

bool LiveRecords::IsLive(const FoundRecord& record) {
  if (record.header.log_sequence < watermark_) return false;
  const auto tombstone = tombstones_.find(record.header.key);
  if (tombstone != tombstones_.end() && record.header.log_sequence <= tombstone->second) {
    return false;
  }
  return seen_.insert(record.header.key).second;
}

size_t LiveRecords::Filter(std::vector<FoundRecord>* records) {
  size_t kept = records->size();
  for (size_t i = records->size(); i > 0; --i) {  // the later in a segment, the newer
    if (i > kKeysAhead) seen_.prefetch((*records)[i - 1 - kKeysAhead].header.key);
    const FoundRecord& record = (*records)[i - 1];
    if (!IsLive(record)) continue;
    if (--kept != i - 1) (*records)[kept] = record;
  }
  records->erase(records->begin(), records->begin() + static_cast<ptrdiff_t>(kept));
  return kept;
}

}  // namespace crumb
