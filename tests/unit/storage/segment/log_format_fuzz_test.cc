// Every truncation and mutation of the log's structures, random bytes, and whole random segments:
// the parsers answer, never read outside, and accept only what is in range. Fixed seeds; run under
// ASan and UBSan.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/mem_device.h"
#include "storage/segment/footer_builder.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_head.h"
#include "storage/segment/log_scan.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using testing::LogTester;

constexpr uint32_t kSegment = 1 << 20;
const LogSalt kSalt = {1, 2, 3};

// An exact heap copy, so that ASan sees the first byte read past the end.
struct Exact {
  explicit Exact(Bytes bytes) : size(bytes.size()), data(std::make_unique<uint8_t[]>(size)) {
    if (size > 0) std::memcpy(data.get(), bytes.data(), size);
  }
  Bytes bytes() const { return {data.get(), size}; }
  size_t size;
  std::unique_ptr<uint8_t[]> data;
};

void Touch(Bytes bytes) {
  const Exact copy(bytes);
  Superblock superblock;
  if (ParseSuperblock(copy.bytes(), &superblock) == ParseResult::kOk) {
    EXPECT_GE(superblock.segment_bytes, kSegmentBytesMin);
    EXPECT_LE(superblock.segment_bytes, kSegmentBytesMax);
    EXPECT_GE(superblock.segment_count, kSegmentsMin);
  }
  IsUnfinishedSuperblock(copy.bytes());
  static_cast<void>(ParseHead(copy.bytes()));
  SegmentMark mark;
  if (ParseMark(copy.bytes(), &mark) == ParseResult::kOk) {
    EXPECT_NE(mark.generation, 0u);
    EXPECT_LE(EntriesBytes(mark), uint64_t{kSegmentBytesMax} * 2);
  }
  TombstoneBlock tombstones;
  if (ParseTombstones(copy.bytes(), kSalt, &tombstones) == ParseResult::kOk) {
    EXPECT_GT(tombstones.count, 0);
    EXPECT_LE(tombstones.count, kTombstonesPerBlock);
  }
}

std::vector<std::vector<uint8_t>> Samples() {
  std::vector<std::vector<uint8_t>> out(4, std::vector<uint8_t>(kLogBlock));
  Superblock superblock;
  superblock.log_id = 5;
  superblock.segment_bytes = kSegment;
  superblock.segment_count = 4;
  StoreSuperblock(superblock, absl::MakeSpan(out[0]));
  SegmentMark mark;
  mark.state = MarkState::kSealed;
  mark.generation = 3;
  mark.record_count = 2;
  StoreMark(mark, absl::MakeSpan(out[1]));
  TombstoneBlock tombstones;
  tombstones.count = 2;
  StoreTombstones(tombstones, kSalt, absl::MakeSpan(out[2]));
  testing::FillPage(1, 3000, 1, absl::MakeSpan(out[3]));
  return out;
}

TEST(LogFormatFuzz, EveryTruncation) {
  for (const std::vector<uint8_t>& sample : Samples()) {
    for (size_t size = 0; size <= sample.size(); ++size) Touch(Bytes(sample).subspan(0, size));
  }
}

TEST(LogFormatFuzz, EveryByteAndWordReplaced) {
  constexpr uint64_t kWords[] = {0, 1, 1ull << 31, 0xffffffffull, 1ull << 63, ~uint64_t{0}};
  for (const std::vector<uint8_t>& sample : Samples()) {
    for (size_t at = 0; at + 8 <= 2048 + 128; at += at < 512 ? 1 : 13) {
      std::vector<uint8_t> changed = sample;
      for (uint64_t word : kWords) {
        std::memcpy(changed.data() + at, &word, 8);
        Touch(changed);
      }
    }
  }
}

// Damage behind a valid checksum: what a program with a bug, or with bad intent, might write.
TEST(LogFormatFuzz, FieldsReplacedUnderAValidChecksum) {
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> block(kLogBlock);
    Superblock superblock;
    superblock.segment_bytes = rng.Chance(1, 2) ? kSegment : static_cast<uint32_t>(rng.Next());
    superblock.segment_count = static_cast<uint32_t>(rng.Next());
    superblock.struct_bytes = rng.Chance(1, 2) ? 512 : static_cast<uint32_t>(rng.Next());
    superblock.clean = static_cast<uint32_t>(rng.Below(3));
    superblock.watermark = rng.Below(2);
    superblock.format_version = static_cast<uint32_t>(rng.Below(3));
    StoreSuperblock(superblock, absl::MakeSpan(block));
    Touch(block);
    SegmentMark mark;
    mark.state = static_cast<MarkState>(rng.Below(5));
    mark.generation = static_cast<uint32_t>(rng.Below(3));
    mark.record_count = static_cast<uint32_t>(rng.Next() >> rng.Below(64));
    mark.tombstone_count = static_cast<uint32_t>(rng.Next() >> rng.Below(64));
    mark.data_end_blocks = static_cast<uint32_t>(rng.Next() >> rng.Below(64));
    StoreMark(mark, absl::MakeSpan(block));
    Touch(block);
  }
}

TEST(LogFormatFuzz, FootersThatContradictThemselves) {
  Rng rng(2);
  const ScanTarget target = {5, kSalt, 1, 3, 0, kSegment / kLogBlock - 1};
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> entries(3 * sizeof(FooterRecord) + 2 * sizeof(Tombstone));
    for (uint32_t k = 0; k < 3; ++k) {
      FooterRecord entry;
      PageHeader header;
      header.token_count = static_cast<uint16_t>(rng.Below(3));
      header.payload_bytes = static_cast<uint32_t>(rng.Next() >> (32 + rng.Below(32)));
      header.format_version = static_cast<uint16_t>(rng.Below(3));
      std::memcpy(entry.header.data(), &header, entry.header.size());
      entry.offset_blocks = static_cast<uint32_t>(rng.Below(300));
      std::memcpy(entries.data() + k * sizeof(entry), &entry, sizeof(entry));
    }
    SegmentMark mark;
    mark.record_count = 3;
    mark.tombstone_count = 2;
    mark.data_end_blocks = static_cast<uint32_t>(rng.Below(400));
    const Exact copy(entries);
    SegmentContents contents;
    if (!ReadEntries(target, mark, copy.bytes(), &contents)) continue;
    ++accepted;
    uint32_t end = 0;
    for (const FoundRecord& found : contents.records) {
      EXPECT_GE(found.offset_blocks, end);
      end = found.offset_blocks + found.record_bytes / kLogBlock;
      EXPECT_LE(end, mark.data_end_blocks);
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(LogFormatFuzz, RandomSegments) {
  Rng rng(3);
  const std::vector<std::vector<uint8_t>> samples = Samples();
  for (int round = 0; round < 40; ++round) {
    std::vector<uint8_t> segment(kSegment);
    for (size_t at = 0; at < kSegment; at += kLogBlock) {
      const std::vector<uint8_t>& sample = samples[rng.Below(4)];
      std::copy(sample.begin(), sample.end(), segment.begin() + static_cast<ptrdiff_t>(at));
      PageHeader header = LoadHeader(Bytes(segment).subspan(at));
      if (rng.Chance(1, 2)) {  // a stamp that fits, over a length that may not
        header.magic = kPageMagic;
        header.payload_bytes = static_cast<uint32_t>(rng.Next() >> rng.Below(64));
        const auto block = static_cast<uint32_t>(at / kLogBlock);
        StampHeader(kSalt, {1, 3, block, rng.Next()}, &header);
        StoreHeader(header, absl::MakeSpan(segment).subspan(at));
      }
    }
    const Exact copy(segment);
    for (uint32_t generation : {0u, 3u}) {
      const ScanTarget target = {0, kSalt, 1, generation, 0, kSegment / kLogBlock - 1};
      const SegmentContents contents = ScanSegment(target, copy.bytes());
      EXPECT_LE(contents.end_blocks, kSegment / kLogBlock - 1);
    }
  }
}

// A whole log with random damage of every size: opening says yes or no, reads never lie.
TEST(LogFormatFuzz, WholeLogsWithRandomDamage) {
  SegmentLogOptions options;
  options.bytes_max = 4 * kSegment;
  options.segment_bytes = kSegment;
  options.format_seed = 9;
  MemDevice device({4 * kSegment, 4096, 64, false});
  LogTester log(&device, options);
  ASSERT_TRUE(log.Open().ok());
  for (uint64_t id = 0; id < 40; ++id) {
    const LogTester::Outcome outcome = log.Append(id, 60'000, true);
    if (id % 7 == 0) log.Erase(id, outcome.location);
  }
  log.Drop();
  const std::vector<uint8_t> pristine(device.image().begin(), device.image().end());
  Rng rng(4);
  int opened = 0;
  for (int round = 0; round < 150; ++round) {
    std::copy(pristine.begin(), pristine.end(), device.mutable_image().begin());
    for (uint64_t hits = 1 + rng.Below(6); hits > 0; --hits) {
      const uint64_t bytes = 1 + rng.Below(1ull << rng.Below(20));
      uint64_t at = rng.Below(device.size_bytes() - bytes);
      if (rng.Chance(1, 2)) at = (1 + rng.Below(4)) * kSegment - std::min<uint64_t>(bytes, 6000);
      if (rng.Chance(1, 8)) at = 0;
      for (uint64_t i = 0; i < bytes && at + i < device.size_bytes(); ++i) {
        device.mutable_image()[at + i] = static_cast<uint8_t>(rng.Next());
      }
    }
    if (!log.Open().ok()) continue;
    ++opened;
    for (uint64_t id = 0; id < 40; ++id) {
      if (log.Recovered(id)) log.Read(id, log.RecoveredAt(id));  // checks what it delivers
    }
    log.Append(100, 60'000, true);
    log.Drop();
  }
  EXPECT_GT(opened, 50);
}

}  // namespace
}  // namespace crumb
