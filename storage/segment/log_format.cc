// See log_format.h. Pure.
#include "storage/segment/log_format.h"

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

template <typename T>
T Load(Bytes bytes, size_t offset) {
  CRUMB_CHECK(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void Store(const T& value, MutableBytes bytes, size_t offset) {
  CRUMB_CHECK(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <typename T>
Bytes Front(const T& value, size_t bytes) {
  return {reinterpret_cast<const uint8_t*>(&value), bytes};
}

bool IsZero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

uint64_t Checksum(const Superblock& superblock) {
  return Xxh3(Front(superblock, offsetof(Superblock, checksum)));
}

uint64_t Checksum(const SegmentMark& mark) {
  return Xxh3(Front(mark, offsetof(SegmentMark, checksum)));
}

template <size_t N>
uint64_t Keyed(const LogSalt& salt, const std::array<uint8_t, N>& bytes, size_t used) {
  std::array<uint8_t, N + sizeof(LogSalt)> message;
  std::memcpy(message.data(), salt.data(), salt.size());
  std::memcpy(message.data() + salt.size(), bytes.data(), used);
  const Sha256 digest = Sha256Of(Bytes(message.data(), salt.size() + used));
  return Load<uint64_t>(Bytes(digest.data(), digest.size()), 0);
}

uint64_t Checksum(const LogSalt& salt, const TombstoneBlock& tombstones) {
  std::array<uint8_t, offsetof(TombstoneBlock, checksum)> bytes;
  std::memcpy(bytes.data(), &tombstones, bytes.size());
  return Keyed(salt, bytes, bytes.size());
}

bool InRange(const Superblock& s) {
  const bool power = s.segment_bytes != 0 && (s.segment_bytes & (s.segment_bytes - 1)) == 0;
  return s.struct_bytes == sizeof(Superblock) && power && s.segment_bytes >= kSegmentBytesMin &&
         s.segment_bytes <= kSegmentBytesMax && s.segment_count >= kSegmentsMin && s.clean <= 1 &&
         s.watermark >= 1;
}

bool InRange(const SegmentMark& m) {
  const bool state = m.state == MarkState::kOpen || m.state == MarkState::kSealed ||
                     m.state == MarkState::kRetired;
  return state && m.generation != 0 && m.zero == 0 &&
         m.record_count <= kSegmentBytesMax / kLogBlock &&
         m.tombstone_count <= kSegmentBytesMax / sizeof(Tombstone) &&
         m.data_end_blocks <= kSegmentBytesMax / kLogBlock;
}

ParseResult ParseMarkCopy(Bytes block, size_t offset, SegmentMark* out) {
  const auto mark = Load<SegmentMark>(block, offset);
  if (mark.magic != SegmentMark{}.magic || mark.checksum != Checksum(mark)) {
    return ParseResult::kBad;
  }
  if (mark.format_version > kLogFormatVersion) return ParseResult::kNewer;
  if (mark.format_version != kLogFormatVersion || !InRange(mark)) return ParseResult::kBad;
  *out = mark;
  return ParseResult::kOk;
}

bool IsLater(const SegmentMark& a, const SegmentMark& b) {
  if (a.generation != b.generation) return a.generation > b.generation;
  return a.state > b.state;
}

}  // namespace

ParseResult ParseSuperblock(Bytes block, Superblock* out) {
  if (block.size() < sizeof(Superblock)) return ParseResult::kBad;
  const auto superblock = Load<Superblock>(block, 0);
  if (superblock.magic != Superblock{}.magic) {
    return IsZero(block) ? ParseResult::kBlank : ParseResult::kBad;
  }
  if (superblock.checksum != Checksum(superblock)) return ParseResult::kBad;
  if (superblock.format_version > kLogFormatVersion) return ParseResult::kNewer;
  if (superblock.format_version != kLogFormatVersion) return ParseResult::kBad;
  if (!InRange(superblock)) return ParseResult::kBad;
  *out = superblock;
  return ParseResult::kOk;
}

void StoreSuperblock(Superblock superblock, MutableBytes block) {
  superblock.checksum = Checksum(superblock);
  std::fill(block.begin(), block.end(), uint8_t{0});
  Store(superblock, block, 0);
}

bool IsUnfinishedSuperblock(Bytes block) {
  const auto& magic = Superblock{}.magic;
  size_t same = 0;
  while (same < magic.size() && same < block.size() &&
         block[same] == static_cast<uint8_t>(magic[same])) {
    ++same;
  }
  if (same < magic.size()) return IsZero(block.subspan(same));
  return block.size() <= sizeof(Superblock) || IsZero(block.subspan(sizeof(Superblock)));
}

ParseResult ParseMark(Bytes block, SegmentMark* out) {
  if (block.size() < kLogBlock) return ParseResult::kBad;
  SegmentMark copies[2];
  const ParseResult first = ParseMarkCopy(block, 0, &copies[0]);
  const ParseResult second = ParseMarkCopy(block, kCopyStride, &copies[1]);
  if (first == ParseResult::kOk && second == ParseResult::kOk) {
    *out = IsLater(copies[1], copies[0]) ? copies[1] : copies[0];
    return ParseResult::kOk;
  }
  if (first == ParseResult::kOk || second == ParseResult::kOk) {
    *out = first == ParseResult::kOk ? copies[0] : copies[1];
    return ParseResult::kOk;
  }
  if (first == ParseResult::kNewer || second == ParseResult::kNewer) return ParseResult::kNewer;
  return IsZero(block) ? ParseResult::kBlank : ParseResult::kBad;
}

void StoreMark(SegmentMark mark, MutableBytes block) {
  CRUMB_CHECK(block.size() == kLogBlock);
  mark.checksum = Checksum(mark);
  std::fill(block.begin(), block.end(), uint8_t{0});
  Store(mark, block, 0);
  Store(mark, block, kCopyStride);
}

uint64_t EntriesBytes(const SegmentMark& mark) {
  return uint64_t{mark.record_count} * sizeof(FooterRecord) +
         uint64_t{mark.tombstone_count} * sizeof(Tombstone);
}

bool EntriesMatch(const SegmentMark& mark, Bytes entries) {
  return entries.size() == EntriesBytes(mark) && Xxh3(entries) == mark.entries_checksum;
}

FooterRecord LoadFooterRecord(Bytes entries, uint32_t index) {
  return Load<FooterRecord>(entries, size_t{index} * sizeof(FooterRecord));
}

Tombstone LoadFooterTombstone(const SegmentMark& mark, Bytes entries, uint32_t index) {
  const size_t records = size_t{mark.record_count} * sizeof(FooterRecord);
  return Load<Tombstone>(entries, records + size_t{index} * sizeof(Tombstone));
}

ParseResult ParseTombstones(Bytes block, const LogSalt& salt, TombstoneBlock* out) {
  if (block.size() < kLogBlock) return ParseResult::kBad;
  for (size_t offset : {size_t{0}, size_t{kCopyStride}}) {
    const auto copy = Load<TombstoneBlock>(block, offset);
    if (copy.magic != TombstoneBlock{}.magic || copy.format_version != kLogFormatVersion) continue;
    if (copy.count == 0 || copy.count > kTombstonesPerBlock) continue;
    if (copy.checksum != Checksum(salt, copy)) continue;
    *out = copy;
    return ParseResult::kOk;
  }
  return ParseResult::kBad;
}

void StoreTombstones(TombstoneBlock tombstones, const LogSalt& salt, MutableBytes block) {
  CRUMB_CHECK(block.size() == kLogBlock && tombstones.count <= kTombstonesPerBlock);
  tombstones.checksum = Checksum(salt, tombstones);
  std::fill(block.begin(), block.end(), uint8_t{0});
  Store(tombstones, block, 0);
  Store(tombstones, block, kCopyStride);
}

uint64_t PlacementWord(const LogSalt& salt, const RecordPlace& place) {
  std::array<uint8_t, 20> bytes;
  const MutableBytes out(bytes.data(), bytes.size());
  Store(place.segment, out, 0);
  Store(place.generation, out, 4);
  Store(place.offset_blocks, out, 8);
  Store(place.log_sequence, out, 12);
  return Keyed(salt, bytes, bytes.size());
}

void StampHeader(const LogSalt& salt, const RecordPlace& place, PageHeader* header) {
  header->segment = place.segment;
  header->generation = place.generation;
  header->log_sequence = place.log_sequence;
  header->placement = PlacementWord(salt, place);
  SealStamp(*header);
}

}  // namespace crumb
