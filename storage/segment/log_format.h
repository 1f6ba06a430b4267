// Bytes of the segment log on disk: superblock, segment mark, footer, tombstone block. All little-
// endian, versioned, checksummed, padding zero; docs/storage.md has the tables, golden tests hold
// the bytes. Pure functions, any thread. PROMISE: a parser believes nothing: whatever the bytes, it
// reads inside its span and returns values in range or a reason.
#ifndef CRUMB_STORAGE_SEGMENT_LOG_FORMAT_H_
#define CRUMB_STORAGE_SEGMENT_LOG_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr uint32_t kLogFormatVersion = 1;
inline constexpr uint32_t kLogBlock = kPageAlignment;
inline constexpr uint32_t kLogHeadBytes = 64 * 1024;  // in front of segment 0's records
inline constexpr std::array<uint64_t, 2> kSuperblockOffsets = {0, 32 * 1024};
inline constexpr uint32_t kCopyStride = 2048;  // marks and tombstone blocks: two copies in a block
inline constexpr uint32_t kSegmentBytesMin = 1u << 20, kSegmentBytesMax = 256u << 20;
inline constexpr uint32_t kSegmentsMin = 4;

using LogSalt = std::array<uint8_t, 16>;

struct Superblock {  // in the first sector of its block, so that it is written whole or not at all
  std::array<char, 8> magic = {'C', 'R', 'U', 'M', 'B', 'L', 'O', 'G'};
  uint32_t format_version = kLogFormatVersion;
  uint32_t struct_bytes = 512;
  uint64_t log_id = 0;  // of this formatting; marks and tombstones repeat it
  LogSalt salt{};       // keys the placement words
  uint64_t secret_fingerprint = 0;
  uint32_t segment_bytes = 0;
  uint32_t segment_count = 0;
  uint64_t revision = 0;        // the copy with the higher one is newer
  uint64_t watermark = 1;       // records with a lower log sequence are dead (Flush)
  uint32_t clean = 0;           // 1: the last run ended with Close; open segments hold nothing
  uint32_t generation_min = 0;  // segments of a lower generation are dead (reclaimed)
  std::array<uint8_t, 424> zero{};
  uint64_t checksum = 0;  // XXH3-64 of bytes 0-503; stays there in every version
};
static_assert(sizeof(Superblock) == 512 && std::is_trivially_copyable_v<Superblock>);
static_assert(offsetof(Superblock, checksum) == 504);

enum class MarkState : uint16_t { kOpen = 1, kSealed = 2, kRetired = 3 };

struct SegmentMark {            // last block of a segment, two copies
  uint32_t magic = 0x4d535243;  // "CRSM"
  uint16_t format_version = kLogFormatVersion;
  MarkState state = MarkState::kOpen;
  uint64_t log_id = 0;
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint32_t record_count = 0;
  uint32_t tombstone_count = 0;
  uint32_t data_end_blocks = 0;  // first block after the records
  uint32_t zero = 0;
  uint64_t sequence_max = 0;      // of its records and tombstones
  uint64_t entries_checksum = 0;  // XXH3-64 of the footer's entries
  uint64_t checksum = 0;          // XXH3-64 of the bytes before
};
static_assert(sizeof(SegmentMark) == 64 && std::is_trivially_copyable_v<SegmentMark>);

struct FooterRecord {
  std::array<uint8_t, 96> header{};  // immutable bytes of the page header
  uint64_t log_sequence = 0;
  uint32_t offset_blocks = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(FooterRecord) == 112 && std::is_trivially_copyable_v<FooterRecord>);

struct Tombstone {
  BlockKey key;
  uint64_t log_sequence = 0;  // records of the key up to this one are dead
};
static_assert(sizeof(Tombstone) == 24 && std::is_trivially_copyable_v<Tombstone>);

inline constexpr size_t kTombstonesPerBlock = 80;

struct TombstoneBlock {         // one copy; a block of the log holds two
  uint32_t magic = 0x42545243;  // "CRTB"
  uint16_t format_version = kLogFormatVersion;
  uint16_t count = 0;
  uint64_t log_id = 0;
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint32_t offset_blocks = 0;
  uint32_t zero = 0;
  std::array<Tombstone, kTombstonesPerBlock> entries{};
  uint64_t checksum = 0;  // first 8 bytes of SHA-256(salt, the bytes before): not to be forged
};
static_assert(sizeof(TombstoneBlock) == 1960 && std::is_trivially_copyable_v<TombstoneBlock>);

// Where a record lies, as far as the formats are concerned.
struct RecordPlace {
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint32_t offset_blocks = 0;
  uint64_t log_sequence = 0;
};

enum class ParseResult : uint8_t { kOk, kBlank, kBad, kNewer };

ParseResult ParseSuperblock(Bytes block, Superblock* out);
// Writes the block whole: the superblock, then zeros.
void StoreSuperblock(Superblock superblock, MutableBytes block);
// True for what a crash in the middle of formatting leaves: zeros, or our magic and nothing valid.
bool IsUnfinishedSuperblock(Bytes block);

// Either copy will do; of two valid ones the later generation, then the later state, counts.
ParseResult ParseMark(Bytes block, SegmentMark* out);
void StoreMark(SegmentMark mark, MutableBytes block);

// Entries of a sealed segment: records, then tombstones. REQUIRES: entries.size() == EntriesBytes.
uint64_t EntriesBytes(const SegmentMark& mark);
bool EntriesMatch(const SegmentMark& mark, Bytes entries);
FooterRecord LoadFooterRecord(Bytes entries, uint32_t index);
Tombstone LoadFooterTombstone(const SegmentMark& mark, Bytes entries, uint32_t index);

ParseResult ParseTombstones(Bytes block, const LogSalt& salt, TombstoneBlock* out);
void StoreTombstones(TombstoneBlock tombstones, const LogSalt& salt, MutableBytes block);

// The word in a stamp that binds a record to its place; keyed, so that no payload can hold one.
uint64_t PlacementWord(const LogSalt& salt, const RecordPlace& place);
// Fills the stamp of a sealed header.
void StampHeader(const LogSalt& salt, const RecordPlace& place, PageHeader* header);

}  // namespace crumb

#endif  // CRUMB_STORAGE_SEGMENT_LOG_FORMAT_H_
