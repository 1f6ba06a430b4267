// See footer_builder.h. The log's thread.
#include "storage/segment/footer_builder.h"

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr uint32_t kDropped = 0xffffffff;

}  // namespace

FooterBuilder::FooterBuilder(const LogGeometry& geometry) : record_capacity_(geometry.BlocksMax()) {
  const uint64_t bytes = uint64_t{record_capacity_} * sizeof(FooterRecord) +
                         kTombstonesMax * sizeof(Tombstone) + 2 * kLogBlock;
  buffer_ = AlignedBuffer(bytes);
  tombstones_.reserve(kTombstonesMax);
}

FooterRecord* FooterBuilder::At(uint32_t index) {
  return reinterpret_cast<FooterRecord*>(buffer_.data()) + index;
}

void FooterBuilder::Clear() {
  record_count_ = 0;
  sequence_max_ = 0;
  tombstones_.clear();
}

void FooterBuilder::AddRecord(const PageHeader& header, uint32_t offset_blocks) {
  CRUMB_CHECK(record_count_ < record_capacity_);
  FooterRecord* entry = At(record_count_++);
  *entry = {};
  std::memcpy(entry->header.data(), &header, entry->header.size());
  entry->log_sequence = header.log_sequence;
  entry->offset_blocks = offset_blocks;
  sequence_max_ = std::max(sequence_max_, header.log_sequence);
}

void FooterBuilder::DropRecord(uint32_t offset_blocks) {
  for (uint32_t i = record_count_; i > 0; --i) {  // a failed write is a recent one
    if (At(i - 1)->offset_blocks != offset_blocks) continue;
    At(i - 1)->zero = kDropped;
    return;
  }
}

void FooterBuilder::AddTombstone(const Tombstone& tombstone) {
  CRUMB_CHECK(tombstones_.size() < kTombstonesMax);
  tombstones_.push_back(tombstone);
  sequence_max_ = std::max(sequence_max_, tombstone.log_sequence);
}

uint64_t FooterBuilder::BytesWith(size_t more_records, size_t more_tombstones) const {
  const uint64_t entries = (record_count_ + more_records) * sizeof(FooterRecord) +
                           (tombstones_.size() + more_tombstones) * sizeof(Tombstone);
  return LogGeometry::RoundUp(entries) + kLogBlock;
}

MutableBytes FooterBuilder::Build(SegmentMark mark) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < record_count_; ++i) {
    if (At(i)->zero == kDropped) continue;
    if (kept != i) *At(kept) = *At(i);
    ++kept;
  }
  record_count_ = kept;
  const uint64_t records_bytes = uint64_t{kept} * sizeof(FooterRecord);
  const uint64_t tombstones_bytes = tombstones_.size() * sizeof(Tombstone);
  const uint64_t entries_bytes = records_bytes + tombstones_bytes;
  const uint64_t padded_bytes = LogGeometry::RoundUp(entries_bytes);
  CRUMB_CHECK(padded_bytes + kLogBlock <= buffer_.size());
  if (tombstones_bytes > 0) {
    std::memcpy(buffer_.data() + records_bytes, tombstones_.data(), tombstones_bytes);
  }
  std::memset(buffer_.data() + entries_bytes, 0, padded_bytes - entries_bytes);
  mark.record_count = kept;
  mark.tombstone_count = static_cast<uint32_t>(tombstones_.size());
  mark.sequence_max = sequence_max_;
  mark.entries_checksum = Xxh3(Bytes(buffer_.data(), entries_bytes));
  StoreMark(mark, buffer_.span().subspan(padded_bytes, kLogBlock));
  return buffer_.span().subspan(0, padded_bytes + kLogBlock);
}

}  // namespace crumb
