// Damage on the device: one flipped byte anywhere, destroyed and foreign heads, other secrets,
// newer formats, interrupted formatting, other sizes. PROMISE checked: a flip loses at most what it
// touches; what is not ours is refused and stays as it was; nothing crashes. One thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/mem_device.h"
#include "storage/segment/log_format.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using testing::LogTester;
using testing::TestKey;

constexpr uint32_t kSegment = 1 << 20;
constexpr uint64_t kBytes = 4 * kSegment;

SegmentLogOptions Options() {
  SegmentLogOptions options;
  options.bytes_max = kBytes;
  options.segment_bytes = kSegment;
  options.secret_fingerprint = 42;
  options.format_seed = 7;
  return options;
}

std::vector<uint8_t> Copy(const MemDevice& device) {
  return {device.image().begin(), device.image().end()};
}

class SegmentLogDamageTest : public ::testing::Test {
 protected:
  // Two sealed segments and an open one, pages of several sizes, two of them erased.
  void Fill() {
    ASSERT_TRUE(log_.Open().ok());
    for (uint64_t id = 0; id < 26; ++id) {
      const uint32_t bytes = id % 3 == 0 ? 200'000 : 50'000;
      const LogTester::Outcome outcome = log_.Append(id, bytes, true);
      ASSERT_EQ(outcome.result, BlockResult::kOk);
      at_[id] = outcome.location;
      if (id == 5 || id == 24) {
        ASSERT_EQ(log_.Erase(id - 3, at_.at(id - 3)), BlockResult::kOk);
        at_.erase(id - 3);
      }
    }
    log_.Drop();
    pristine_ = Copy(device_);
  }
  uint64_t Begin(const DiskLocation& at) const {
    return uint64_t{at.segment} * kSegment + uint64_t{at.offset_blocks} * kLogBlock;
  }
  // Flips one byte, recovers, checks everybody.
  void FlipAndCheck(uint64_t offset, uint8_t mask) {
    std::copy(pristine_.begin(), pristine_.end(), device_.mutable_image().begin());
    device_.mutable_image()[offset] ^= mask;
    const absl::Status status = log_.Open();
    ASSERT_TRUE(status.ok()) << status;
    uint64_t lost = 0;
    for (const auto& [id, at] : at_) {
      const bool touched = offset >= Begin(at) && offset < Begin(at) + at.record_bytes;
      const bool exact =
          log_.Recovered(id) && log_.RecoveredAt(id) == at && log_.Read(id, at) == BlockResult::kOk;
      ASSERT_TRUE(exact || touched) << "page " << id;
      if (!exact) ++lost;
    }
    ASSERT_LE(lost, 1u);
    ASSERT_FALSE(log_.Recovered(2)) << "erased, and back";
    ASSERT_FALSE(log_.Recovered(21)) << "erased, and back";
    ASSERT_LE(log_.recovered().size(), at_.size());
  }
  void FlipRange(uint64_t begin, uint64_t end, uint64_t stride) {
    for (uint64_t offset = begin; offset < end; offset += stride) {
      ASSERT_NO_FATAL_FAILURE(FlipAndCheck(offset, static_cast<uint8_t>(1u << (offset % 8))))
          << "byte " << offset;
    }
  }
  absl::Status OpenOther(const SegmentLogOptions& options) {
    log_.Drop();
    LogTester other(&device_, options);
    return other.Open();
  }

  MemDevice device_{{kBytes, 4096, 64, false}};
  LogTester log_{&device_, Options()};
  std::map<uint64_t, DiskLocation> at_;
  std::vector<uint8_t> pristine_;
  uint64_t checks_ = 0;
};

TEST_F(SegmentLogDamageTest, AFlipInTheSuperblocksLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t base : kSuperblockOffsets) FlipRange(base, base + sizeof(Superblock), 13);
}

TEST_F(SegmentLogDamageTest, AFlipInAMarkLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t segment = 0; segment < 4; ++segment) {
    const uint64_t mark = (segment + 1) * kSegment - kLogBlock;
    FlipRange(mark, mark + sizeof(SegmentMark), 5);
    FlipRange(mark + kCopyStride, mark + kCopyStride + sizeof(SegmentMark), 5);
  }
}

TEST_F(SegmentLogDamageTest, AFlipInAFooterLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t segment = 0; segment < 4; ++segment) {
    SegmentMark mark;
    const uint64_t at = (segment + 1) * kSegment - kLogBlock;
    if (ParseMark(device_.image().subspan(at, kLogBlock), &mark) != ParseResult::kOk) continue;
    if (mark.state != MarkState::kSealed) continue;
    const uint64_t bytes = EntriesBytes(mark);
    ASSERT_GT(bytes, 0u);
    const uint64_t begin = at - (bytes + kLogBlock - 1) / kLogBlock * kLogBlock;
    FlipRange(begin, begin + bytes, 41);
  }
}

// Only a scan reads stamps: records of a sealed segment are found by its footer.
TEST_F(SegmentLogDamageTest, AFlipInAStampIsCounted) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const DiskLocation at = at_.rbegin()->second;  // in the open segment
  for (uint64_t byte = 96; byte < 128; ++byte) {
    ASSERT_NO_FATAL_FAILURE(FlipAndCheck(Begin(at) + byte, 0x10)) << byte;
    EXPECT_EQ(log_.log().stats().dropped_stamp, 1u) << byte;
    EXPECT_FALSE(log_.Recovered(at_.rbegin()->first)) << byte;
  }
}

TEST_F(SegmentLogDamageTest, AFlipInATombstoneBlockLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  int found = 0;
  for (uint64_t offset = 0; offset < kBytes; offset += kLogBlock) {
    uint32_t magic;
    std::memcpy(&magic, pristine_.data() + offset, 4);
    if (magic != TombstoneBlock{}.magic) continue;
    ++found;
    FlipRange(offset, offset + 120, 3);
    FlipRange(offset + kCopyStride, offset + kCopyStride + 120, 11);
  }
  EXPECT_EQ(found, 2);
}

TEST_F(SegmentLogDamageTest, AFlipInAPageLosesThatPageOnly) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t id : {0, 1, 12, 24, 25}) {
    ASSERT_TRUE(at_.contains(id));
    FlipRange(Begin(at_[id]), Begin(at_[id]) + kPageHeaderBytes, 3);
    FlipRange(Begin(at_[id]) + kPageHeaderBytes, Begin(at_[id]) + at_[id].record_bytes, 30011);
  }
}

TEST_F(SegmentLogDamageTest, AFlipAnywhereElse) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Rng rng(3);
  for (int i = 0; i < 150; ++i) {
    const uint64_t offset = rng.Below(kBytes);
    ASSERT_NO_FATAL_FAILURE(FlipAndCheck(offset, 0x80)) << "byte " << offset;
  }
}

TEST_F(SegmentLogDamageTest, FlippedByteAfterACleanCloseLosesNothingElse) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  ASSERT_TRUE(log_.Open().ok());
  ASSERT_TRUE(log_.log().Close().ok());
  log_.Drop();
  pristine_ = Copy(device_);
  for (uint64_t segment = 0; segment < 4; ++segment) {
    FlipRange((segment + 1) * kSegment - kLogBlock, (segment + 1) * kSegment, 101);
  }
  FlipRange(0, 512, 31);
}

TEST_F(SegmentLogDamageTest, AWholeLostMarkCostsItsSegmentOnly) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const uint32_t segment = at_[12].segment;
  std::memset(device_.mutable_image().data() + uint64_t{segment + 1} * kSegment - kLogBlock, 0xee,
              kLogBlock);
  ASSERT_TRUE(log_.Open().ok());
  for (const auto& [id, at] : at_) {
    EXPECT_EQ(log_.Recovered(id), at.segment != segment) << id;
  }
  EXPECT_FALSE(log_.Recovered(2));  // its tombstone still counts, wherever it lies
  EXPECT_FALSE(log_.Recovered(21));
  EXPECT_EQ(log_.log().stats().dropped_torn, 1u);
}

TEST_F(SegmentLogDamageTest, GarbageInPlaceOfTheSuperblocksIsRefusedUntouched) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t base : kSuperblockOffsets) {
    std::memset(device_.mutable_image().data() + base, 0x5a, 4096);
  }
  const std::vector<uint8_t> before = Copy(device_);
  const absl::Status status = log_.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("delete it to start empty"));
  EXPECT_EQ(Copy(device_), before);
  EXPECT_FALSE(SegmentLog::CheckHead(device_.image().subspan(0, kLogHeadBytes)).ok());
}

TEST_F(SegmentLogDamageTest, DestroyedButRecognisableSuperblocksOverDataAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (uint64_t base : kSuperblockOffsets) device_.mutable_image()[base + 100] ^= 1;
  const std::vector<uint8_t> before = Copy(device_);
  EXPECT_EQ(log_.Open().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Copy(device_), before);
}

TEST_F(SegmentLogDamageTest, ForeignDataIsRefusedUntouched) {
  // Text at the front; an image whose front is blank; data where only a segment would begin.
  for (uint64_t offset : {uint64_t{0}, uint64_t{5000}, uint64_t{40'000}, uint64_t{kSegment},
                          uint64_t{2 * kSegment - 1}}) {
    std::fill(device_.mutable_image().begin(), device_.mutable_image().end(), uint8_t{0});
    std::memset(device_.mutable_image().data() + offset, 'x', 1);
    const std::vector<uint8_t> before = Copy(device_);
    const absl::Status status = log_.Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << offset;
    EXPECT_EQ(Copy(device_), before);
  }
}

TEST_F(SegmentLogDamageTest, ShortForeignHeadsAreRefused) {
  const std::vector<uint8_t> text = {'h', 'e', 'l', 'l', 'o'};
  EXPECT_FALSE(SegmentLog::CheckHead(text).ok());
  EXPECT_TRUE(SegmentLog::CheckHead(Bytes()).ok());
  const std::vector<uint8_t> zeros(100);
  EXPECT_TRUE(SegmentLog::CheckHead(zeros).ok());
}

TEST_F(SegmentLogDamageTest, InterruptedFormattingIsFormattedAgain) {
  ASSERT_TRUE(log_.Open().ok());
  log_.Drop();
  const std::vector<uint8_t> whole = Copy(device_);
  for (size_t kept : {0, 1, 7, 8, 100, 511}) {
    for (bool second : {false, true}) {  // in which copy the power went away
      std::fill(device_.mutable_image().begin(), device_.mutable_image().end(), uint8_t{0});
      const uint64_t torn = kSuperblockOffsets[second ? 1 : 0];
      std::copy_n(whole.begin() + static_cast<ptrdiff_t>(torn), kept,
                  device_.mutable_image().begin() + static_cast<ptrdiff_t>(torn));
      if (second) std::copy_n(whole.begin(), 4096, device_.mutable_image().begin());
      EXPECT_TRUE(SegmentLog::CheckHead(device_.image().subspan(0, kLogHeadBytes)).ok());
      ASSERT_TRUE(log_.Open().ok()) << kept;
      EXPECT_TRUE(log_.recovered().empty());
      EXPECT_EQ(log_.Append(1, 100, true).result, BlockResult::kOk);
      log_.Drop();
    }
  }
}

TEST_F(SegmentLogDamageTest, ANewerFormatIsRefusedWithTheRemedy) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  Superblock superblock;
  ASSERT_EQ(ParseSuperblock(device_.image().subspan(0, 4096), &superblock), ParseResult::kOk);
  superblock.format_version = kLogFormatVersion + 1;
  StoreSuperblock(superblock, device_.mutable_image().subspan(0, 4096));
  const std::vector<uint8_t> before = Copy(device_);
  const absl::Status status = log_.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("newer"));
  EXPECT_EQ(Copy(device_), before);
}

TEST_F(SegmentLogDamageTest, AnotherSecretOrSegmentSizeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  SegmentLogOptions options = Options();
  options.secret_fingerprint = 43;
  absl::Status status = OpenOther(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("secret"));
  options = Options();
  options.segment_bytes = 2 << 20;
  status = OpenOther(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nvme.segment_bytes"));
  options.segment_bytes = 0;  // as it is
  EXPECT_TRUE(OpenOther(options).ok());
}

// A page put into a page: after the outer record's header rotted, recovery walks through its
// payload, and must not believe what it finds there.
TEST_F(SegmentLogDamageTest, APageInsideAPayloadIsNotARecord) {
  ASSERT_TRUE(log_.Open().ok());
  const DiskLocation probe = log_.Append(1, 100, true).location;
  AlignedBuffer inner(kLogBlock), outer(4 * kLogBlock);
  testing::FillPage(666, 100, 1, inner.span());
  PageHeader fake = LoadHeader(inner.span());
  fake.segment = probe.segment;
  fake.generation = probe.generation;
  fake.log_sequence = 1u << 30;
  // All that an outsider can see: the stamp of a record of his own.
  std::memcpy(&fake.placement,
              device_.image().data() + Begin(probe) + offsetof(PageHeader, placement), 8);
  SealStamp(fake);
  StoreHeader(fake, inner.span());
  PageHeader header = fake;
  header.key = TestKey(2);
  header.payload_bytes = 4 * kLogBlock - kPageHeaderBytes;
  std::copy_n(inner.data(), kLogBlock, outer.data() + kLogBlock);
  SealHeader(header, outer.span().subspan(kPageHeaderBytes, header.payload_bytes));
  StoreHeader(header, outer.span());
  ASSERT_EQ(log_.log().Append(outer.span(), true, 900), BlockResult::kOk);
  const DiskLocation at = log_.WaitFor(LogEventKind::kAppended, 900).location;
  log_.Drop();
  device_.mutable_image()[Begin(at) + 3] ^= 1;  // its magic
  ASSERT_TRUE(log_.Open().ok());
  EXPECT_TRUE(log_.Recovered(1));
  EXPECT_FALSE(log_.Recovered(2));
  EXPECT_FALSE(log_.Recovered(666));
}

class SegmentLogSizeTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLarge = 8 * kSegment;
  absl::Status Open(uint64_t bytes) {
    log_.Drop();
    log_.options() = Options();
    log_.options().bytes_max = bytes;
    return log_.Open();
  }
  MemDevice device_{{kLarge, 4096, 64, false}};
  LogTester log_{&device_, Options()};
};

TEST_F(SegmentLogSizeTest, GrowsAndShrinksUnderTheCap) {
  ASSERT_TRUE(Open(kLarge).ok());
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 60; ++id) at[id] = log_.Append(id, 100'000, true).location;
  ASSERT_TRUE(Open(kLarge / 2).ok());
  EXPECT_EQ(log_.log().stats().segments, 4u);
  EXPECT_LE(log_.log().stats().capacity_bytes, kLarge / 2);
  for (const auto& [id, location] : at) {
    EXPECT_EQ(log_.Recovered(id), location.segment < 4) << id;
  }
  // Growing again does not bring back what was cut off: those segments start blank.
  const size_t kept = log_.recovered().size();
  ASSERT_TRUE(Open(kLarge).ok());
  EXPECT_EQ(log_.recovered().size(), kept);
  for (uint64_t id = 100; id < 300; ++id) {
    ASSERT_EQ(log_.Append(id, 100'000).result, BlockResult::kOk);
  }
  EXPECT_EQ(Open(3 * kSegment).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace crumb
