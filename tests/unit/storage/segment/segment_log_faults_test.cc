// A log on a device that rots, loses, misplaces and refuses.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "tests/unit/storage/segment/segment_log_fixture.h"

namespace crumb {
namespace {

using testing::TestKey;

TEST_F(SegmentLogTest, AnUnverifiedReadSaysSo) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  AlignedBuffer out(at.record_bytes);
  ASSERT_EQ(log_.log().ReadUnverified(TestKey(1), at, out.span(), 5), BlockResult::kOk);
  const LogEvent event = log_.WaitFor(LogEventKind::kRead, 5);
  EXPECT_EQ(event.result, BlockResult::kOk);
  EXPECT_FALSE(event.verified);
  EXPECT_EQ(SegmentLog::VerifyRecord(out.span(), TestKey(1), at), BlockResult::kOk);
  EXPECT_EQ(SegmentLog::VerifyRecord(out.span(), TestKey(2), at), BlockResult::kCorrupt);
  DiskLocation other = at;
  ++other.generation;
  EXPECT_EQ(SegmentLog::VerifyRecord(out.span(), TestKey(1), other), BlockResult::kCorrupt);
  for (size_t byte = 0; byte < kPageHeaderBytes + kPayload; byte += byte < 200 ? 1 : 997) {
    out.data()[byte] ^= 0x10;
    EXPECT_EQ(SegmentLog::VerifyRecord(out.span(), TestKey(1), at), BlockResult::kCorrupt) << byte;
    out.data()[byte] ^= 0x10;
  }
  log_.log().ReportCorrupt(TestKey(1), at);
  EXPECT_EQ(log_.Read(1, at), BlockResult::kMiss);
  EXPECT_EQ(log_.log().stats().checksum_failures, 1u);
  log_.Settle();
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
}

TEST_F(SegmentLogTest, BitRotIsAMissAndACounterAndDoesNotComeBack) {
  Open();
  const DiskLocation a = log_.Append(1, kPayload).location;
  const DiskLocation b = log_.Append(2, kPayload).location;
  Block(uint64_t{a.segment} * kSegment + (a.offset_blocks + 3) * uint64_t{4096})[17] ^= 1;
  EXPECT_EQ(log_.Read(1, a), BlockResult::kCorrupt);
  EXPECT_EQ(log_.Read(1, a), BlockResult::kMiss);
  EXPECT_EQ(log_.Read(2, b), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().checksum_failures, 1u);
  log_.Settle();
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
  EXPECT_TRUE(log_.Recovered(2));
}

TEST_F(SegmentLogTest, ARottenSegmentIsQuarantined) {
  Open();
  std::vector<DiskLocation> at;
  for (uint64_t id = 0; id < 30; ++id) at.push_back(log_.Append(id, kPayload).location);
  const uint32_t bad = at[12].segment;
  std::set<uint64_t> in_bad, rotten;
  for (uint64_t id = 0; id < 30; ++id) {
    if (at[id].segment == bad) in_bad.insert(id);
  }
  ASSERT_GT(in_bad.size(), 5u);
  for (uint64_t id : in_bad) {
    if (rotten.size() >= Options().corrupt_max) break;
    rotten.insert(id);
    Block(uint64_t{bad} * kSegment + at[id].offset_blocks * uint64_t{4096})[4000] ^= 1;
  }
  for (uint64_t id : rotten) EXPECT_EQ(log_.Read(id, at[id]), BlockResult::kCorrupt);
  log_.Settle();
  std::set<BlockKey> reclaimed;
  for (const LogEvent& event : log_.TakeEvents()) {
    EXPECT_EQ(event.kind, LogEventKind::kReclaimed);
    reclaimed.insert(event.key);
  }
  EXPECT_EQ(reclaimed.size(), in_bad.size() - rotten.size());
  EXPECT_EQ(log_.log().stats().segments_quarantined, 1u);
  for (uint64_t id : in_bad) EXPECT_EQ(log_.Read(id, at[id]), BlockResult::kMiss);
  Reopen();
  EXPECT_EQ(log_.recovered().size(), 30 - in_bad.size());
  for (uint64_t id = 100; id < 300; ++id) {  // the log goes on and uses the space again
    ASSERT_EQ(log_.Append(id, kPayload).result, BlockResult::kOk);
  }
}

TEST_F(SegmentLogTest, ALostWriteIsNeverServedAsTheNewPage) {
  Open();
  for (uint64_t id = 0; id < 200; ++id) log_.Append(id, kPayload);  // old pages everywhere
  plan_ = [](const IoRequest& request) { return Fault{.lose_write = request.op == IoOp::kWrite}; };
  const DiskLocation at = log_.Append(500, kPayload).location;
  plan_ = nullptr;
  EXPECT_EQ(log_.Read(500, at), BlockResult::kCorrupt);
}

TEST_F(SegmentLogTest, AMisdirectedWriteIsNeverServed) {
  Open();
  std::vector<DiskLocation> at;
  for (uint64_t id = 0; id < 8; ++id) at.push_back(log_.Append(id, kPayload).location);
  plan_ = [](const IoRequest& request) {
    return Fault{.misdirect_bytes = request.op == IoOp::kWrite ? -26 * 4096 : 0};
  };
  const DiskLocation last = log_.Append(8, kPayload).location;
  plan_ = nullptr;
  EXPECT_EQ(log_.Read(8, last), BlockResult::kCorrupt);
  int wrong = 0;
  for (uint64_t id = 0; id < 8; ++id) {
    if (log_.Read(id, at[id]) != BlockResult::kOk) ++wrong;
  }
  EXPECT_LE(wrong, 2);
  Reopen();
  for (const auto& [key, record] : log_.recovered()) {
    for (uint64_t id = 0; id < 9; ++id) {
      if (key == TestKey(id)) {
        EXPECT_EQ(log_.Read(id, record.location), BlockResult::kOk);
      }
    }
  }
}

TEST_F(SegmentLogTest, WriteErrorsTurnTheTierOffAndReadsGoOn) {
  log_.options().errors_max = 3;
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  int error = EIO;
  plan_ = [&error](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : error};
  };
  EXPECT_EQ(log_.Append(2, kPayload).result, BlockResult::kIo);
  error = ENOSPC;
  EXPECT_EQ(log_.Append(3, kPayload).result, BlockResult::kNoSpace);
  EXPECT_TRUE(log_.log().stats().enabled);
  EXPECT_EQ(log_.Append(4, kPayload).result, BlockResult::kNoSpace);
  EXPECT_FALSE(log_.log().stats().enabled);
  EXPECT_EQ(log_.log().stats().times_off, 1u);
  AlignedBuffer page(PageSlotBytes(1));
  testing::FillPage(5, 1, 1, page.span());
  EXPECT_EQ(log_.log().Append(page.span(), false, 9), BlockResult::kIo);
  EXPECT_EQ(log_.Read(1, at), BlockResult::kOk);
  EXPECT_EQ(log_.Erase(1, at), BlockResult::kIo);  // forgotten here, not durably
  EXPECT_EQ(log_.Read(1, at), BlockResult::kMiss);
  // The cause goes away: after a while one append is tried, and the tier is on again.
  plan_ = nullptr;
  EXPECT_EQ(log_.log().Append(page.span(), false, 9), BlockResult::kIo);
  log_.clock().Advance(log_.options().retry_off_us);
  EXPECT_EQ(log_.Append(6, kPayload).result, BlockResult::kOk);
  EXPECT_TRUE(log_.log().stats().enabled);
  EXPECT_EQ(log_.log().stats().append_errors, 3u);
}

TEST_F(SegmentLogTest, ATierThatStaysBrokenIsTriedRarely) {
  log_.options().errors_max = 2;
  Open();
  uint64_t writes = 0;
  plan_ = [&writes](const IoRequest& request) {
    if (request.op != IoOp::kRead) ++writes;
    return Fault{.error = request.op == IoOp::kRead ? 0 : EIO};
  };
  for (uint64_t id = 0; id < 200; ++id) {
    log_.Append(id, kPayload);
    log_.clock().Advance(log_.options().retry_off_us / 10);
  }
  EXPECT_LT(writes, 40u);
  EXPECT_FALSE(log_.log().stats().enabled);
}

TEST_F(SegmentLogTest, ReadErrorsAreMissesOfTheirPageOnly) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kRead ? EIO : 0};
  };
  EXPECT_EQ(log_.Read(1, at), BlockResult::kIo);
  EXPECT_EQ(log_.log().stats().read_errors, 1u);
  plan_ = nullptr;
  EXPECT_EQ(log_.Read(1, at), BlockResult::kOk);
}

TEST_F(SegmentLogTest, AFailedFlushSaysSo) {
  Open();
  log_.Append(1, kPayload, true);
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.offset == 32 * 1024 ? EIO : 0};
  };
  EXPECT_EQ(log_.Flush(), BlockResult::kIo);
  plan_ = nullptr;
  EXPECT_EQ(log_.Flush(), BlockResult::kOk);
  Reopen();
  EXPECT_TRUE(log_.recovered().empty());
}

TEST_F(SegmentLogTest, CloseWithoutAnAnswerableDeviceIsAnError) {
  Open();
  log_.Append(1, kPayload);
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : EIO};
  };
  EXPECT_FALSE(log_.log().Close().ok());
  plan_ = nullptr;
  Reopen();
  EXPECT_FALSE(log_.log().stats().clean_start);
  EXPECT_TRUE(log_.Recovered(1));
}

// A segment that holds only a tombstone and could not be sealed is no clean shutdown: the next
// start would take it for empty, and the erased page would be back.
TEST_F(SegmentLogTest, ATombstoneThatCouldNotBeSealedIsFoundByAScan) {
  Open();
  // As many pages of one block as segment 0 takes: 16 blocks of head, the pages, their footer and
  // the mark fill it to the last block.
  constexpr uint64_t kPages = 232;
  static_assert((16 + kPages + 7 + 1) * kLogBlock == kSegment);
  static_assert(kPages * sizeof(FooterRecord) > 6 * kLogBlock);
  std::vector<DiskLocation> at;
  for (uint64_t id = 0; id < kPages; ++id) at.push_back(log_.Append(id, 1, true).location);
  ASSERT_EQ(at.back().segment, at.front().segment);
  ASSERT_EQ(log_.Erase(7, at[7]), BlockResult::kOk);  // lies alone in the next segment
  log_.Settle();
  ASSERT_EQ(log_.log().stats().segments_free, 6u);
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kSync ? EIO : 0};
  };
  EXPECT_FALSE(log_.log().Close().ok());
  plan_ = nullptr;
  Reopen();
  EXPECT_FALSE(log_.log().stats().clean_start);
  EXPECT_FALSE(log_.Recovered(7));
  EXPECT_EQ(log_.recovered().size(), kPages - 1);
}

}  // namespace
}  // namespace crumb
