// See log_scan.h. Pure.
#include "storage/segment/log_scan.h"

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

uint32_t MagicAt(Bytes block, size_t offset) {
  uint32_t magic;
  std::memcpy(&magic, block.data() + offset, sizeof(magic));
  return magic;
}

bool BelongsHere(const ScanTarget& target, const PageHeader& header, uint32_t offset_blocks) {
  if (target.generation == 0 || !StampIsValid(header)) return false;
  if (header.segment != target.segment || header.generation != target.generation) return false;
  const RecordPlace place = {target.segment, target.generation, offset_blocks, header.log_sequence};
  return header.placement == PlacementWord(target.salt, place);
}

// A whole page whose stamp was damaged: nobody can say any more whether it is the newest of its
// key.
bool StampIsSpoilt(const ScanTarget& target, const PageHeader& header, Bytes rest) {
  if (target.generation == 0 || StampIsValid(header)) return false;
  if (CheckHeaderFields(header) != PageCheck::kOk) return false;
  const uint64_t slot_bytes = PageSlotBytes(header.payload_bytes);
  return slot_bytes <= rest.size() && CheckPage(rest.subspan(0, slot_bytes)) == PageCheck::kOk;
}

// Takes the page at `at` if it is whole; returns how many blocks to go on.
uint32_t TakePage(const ScanTarget& target, Bytes segment, uint32_t at, SegmentContents* out) {
  const Bytes rest =
      segment.subspan(uint64_t{at} * kLogBlock, uint64_t{target.end_blocks - at} * kLogBlock);
  const PageHeader header = LoadHeader(rest);
  if (!BelongsHere(target, header, at)) {
    if (StampIsSpoilt(target, header, rest)) ++out->bad_stamp;
    return 1;
  }
  out->sequence_max = std::max(out->sequence_max, header.log_sequence);
  const uint64_t slot_bytes = PageSlotBytes(header.payload_bytes);
  const bool fits = slot_bytes <= rest.size();
  if (fits) {
    const auto blocks = static_cast<uint32_t>(slot_bytes / kLogBlock);
    out->end_blocks = std::max(out->end_blocks, at + blocks);
  }
  const PageCheck check = fits ? CheckPage(rest.subspan(0, slot_bytes)) : PageCheck::kBadLength;
  if (check == PageCheck::kBadVersion) ++out->bad_format;
  if (check != PageCheck::kOk) {
    // WHY one block and not the whole record: its length may be what is broken.
    if (check != PageCheck::kBadVersion) ++out->bad_checksum;
    out->end_blocks = std::max(out->end_blocks, at + 1);
    return 1;
  }
  out->records.push_back({header, at, static_cast<uint32_t>(slot_bytes)});
  return static_cast<uint32_t>(slot_bytes / kLogBlock);
}

void TakeTombstones(const ScanTarget& target, Bytes block, uint32_t at, SegmentContents* out) {
  TombstoneBlock found;
  if (ParseTombstones(block, target.salt, &found) != ParseResult::kOk) return;
  if (found.log_id != target.log_id || found.segment != target.segment) return;
  if (found.offset_blocks != at) return;
  if (target.generation != 0 && found.generation != target.generation) return;
  out->end_blocks = std::max(out->end_blocks, at + 1);
  for (size_t i = 0; i < found.count; ++i) {
    out->tombstones.push_back(found.entries[i]);
    out->sequence_max = std::max(out->sequence_max, found.entries[i].log_sequence);
  }
}

}  // namespace

SegmentContents ScanSegment(const ScanTarget& target, Bytes segment) {
  CRUMB_CHECK(target.begin_blocks <= target.end_blocks);
  CRUMB_CHECK(uint64_t{target.end_blocks} * kLogBlock <= segment.size());
  SegmentContents out;
  out.end_blocks = target.begin_blocks;
  uint32_t at = target.begin_blocks;
  while (at < target.end_blocks) {
    const Bytes block = segment.subspan(uint64_t{at} * kLogBlock, kLogBlock);
    constexpr uint32_t kTombstoneMagic = TombstoneBlock{}.magic;
    uint32_t step = 1;
    if (target.retired) {
      if (const auto record = RetiredRecord(target, block, at)) out.tombstones.push_back(*record);
    } else if (MagicAt(block, 0) == kPageMagic) {
      step = TakePage(target, segment, at, &out);
    }
    if (MagicAt(block, 0) == kTombstoneMagic || MagicAt(block, kCopyStride) == kTombstoneMagic) {
      TakeTombstones(target, block, at, &out);
    }
    CRUMB_CHECK(step > 0);
    at += step;
  }
  return out;
}

// WHY the header alone: the payload, or its length, may be what is broken.
std::optional<Tombstone> RetiredRecord(const ScanTarget& target, Bytes block, uint32_t at) {
  if (MagicAt(block, 0) != kPageMagic) return std::nullopt;
  const PageHeader header = LoadHeader(block);
  if (!BelongsHere(target, header, at)) return std::nullopt;
  return Tombstone{header.key, header.log_sequence};
}

uint32_t NewestGeneration(const ScanTarget& target, Bytes segment) {
  CRUMB_CHECK(uint64_t{target.end_blocks} * kLogBlock <= segment.size());
  constexpr uint32_t kTombstoneMagic = TombstoneBlock{}.magic;
  uint32_t newest = 0;
  for (uint32_t at = target.begin_blocks; at < target.end_blocks; ++at) {
    const Bytes block = segment.subspan(uint64_t{at} * kLogBlock, kLogBlock);
    if (MagicAt(block, 0) == kPageMagic) {
      ScanTarget own = target;
      const PageHeader header = LoadHeader(block);
      own.generation = header.generation;
      if (BelongsHere(own, header, at)) newest = std::max(newest, header.generation);
    } else if (MagicAt(block, 0) == kTombstoneMagic) {
      TombstoneBlock found;
      const bool ok = ParseTombstones(block, target.salt, &found) == ParseResult::kOk &&
                      found.log_id == target.log_id && found.segment == target.segment &&
                      found.offset_blocks == at;
      if (ok) newest = std::max(newest, found.generation);
    }
  }
  return newest;
}

bool ReadEntries(const ScanTarget& target, const SegmentMark& mark, Bytes entries,
                 SegmentContents* out) {
  CRUMB_CHECK(entries.size() == EntriesBytes(mark));
  if (mark.data_end_blocks > target.end_blocks) return false;
  uint32_t free_from = target.begin_blocks;
  out->records.reserve(mark.record_count);
  for (uint32_t i = 0; i < mark.record_count; ++i) {
    const FooterRecord entry = LoadFooterRecord(entries, i);
    FoundRecord found;
    std::memcpy(static_cast<void*>(&found.header), entry.header.data(), entry.header.size());
    found.offset_blocks = entry.offset_blocks;
    const uint64_t slot_bytes = PageSlotBytes(found.header.payload_bytes);
    if (entry.zero != 0 || entry.offset_blocks < free_from ||
        entry.offset_blocks >= mark.data_end_blocks ||
        slot_bytes > uint64_t{mark.data_end_blocks - entry.offset_blocks} * kLogBlock) {
      return false;
    }
    found.record_bytes = static_cast<uint32_t>(slot_bytes);
    free_from = entry.offset_blocks + static_cast<uint32_t>(slot_bytes / kLogBlock);
    const PageCheck check = CheckHeaderFields(found.header);
    if (check == PageCheck::kBadVersion) ++out->bad_format;
    if (check != PageCheck::kOk && check != PageCheck::kBadVersion) ++out->bad_checksum;
    if (check != PageCheck::kOk) continue;
    found.header.segment = target.segment;
    found.header.generation = target.generation;
    found.header.log_sequence = entry.log_sequence;
    out->records.push_back(found);
  }
  for (uint32_t i = 0; i < mark.tombstone_count; ++i) {
    out->tombstones.push_back(LoadFooterTombstone(mark, entries, i));
  }
  out->end_blocks = std::max(mark.data_end_blocks, target.begin_blocks);
  out->sequence_max = mark.sequence_max;
  return true;
}

}  // namespace crumb
