// The life of pages in one log on a memory device: append, read, erase, flush, reclaim, recover,
// refuse. One thread.
#include "storage/segment/segment_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "storage/device/fault_device.h"
#include "storage/device/mem_device.h"
#include "storage/segment/log_format.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using testing::LogTester;
using testing::TestKey;

constexpr uint64_t kBytes = 8 << 20;
constexpr uint32_t kSegment = 1 << 20;
constexpr uint32_t kPayload = 100'000;  // 25 blocks with its header

class SegmentLogTest : public ::testing::Test {
 protected:
  static SegmentLogOptions Options() {
    SegmentLogOptions options;
    options.bytes_max = kBytes;
    options.segment_bytes = kSegment;
    options.secret_fingerprint = 42;
    options.format_seed = 7;
    return options;
  }
  void Open() { ASSERT_TRUE(log_.Open().ok()); }
  void Reopen() {
    log_.Drop();
    Open();
  }
  absl::Status OpenStatus() { return log_.Open(); }
  MutableBytes Block(uint64_t offset) { return mem_.mutable_image().subspan(offset, kLogBlock); }

  MemDevice mem_{{kBytes, 4096, 64, false}};
  Fault fault_;
  std::function<Fault(const IoRequest&)> plan_;
  FaultDevice device_{&mem_, [this](const IoRequest& request, uint64_t) {
                        return plan_ ? plan_(request) : Fault{};
                      }};
  LogTester log_{&device_, Options()};
};

TEST_F(SegmentLogTest, ANewLogIsEmpty) {
  Open();
  EXPECT_TRUE(log_.recovered().empty());
  const SegmentLogStats stats = log_.log().stats();
  EXPECT_EQ(stats.used_bytes, 0u);
  EXPECT_EQ(stats.records, 0u);
  EXPECT_EQ(stats.segments, 8u);
  EXPECT_TRUE(stats.enabled);
  EXPECT_TRUE(log_.log().idle());
}

TEST_F(SegmentLogTest, WhatIsAppendedIsRead) {
  Open();
  const LogTester::Outcome a = log_.Append(1, kPayload);
  const LogTester::Outcome b = log_.Append(2, 1, true);
  ASSERT_EQ(a.result, BlockResult::kOk);
  ASSERT_EQ(b.result, BlockResult::kOk);
  EXPECT_EQ(b.location.record_bytes, 4096u);
  EXPECT_EQ(log_.Read(1, a.location), BlockResult::kOk);
  EXPECT_EQ(log_.Read(2, b.location), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().records, 2u);
  EXPECT_EQ(log_.log().stats().used_bytes, PageSlotBytes(kPayload) + 4096);
}

TEST_F(SegmentLogTest, SizesAroundBlocksAndTheLargestOne) {
  Open();
  const auto largest = static_cast<uint32_t>(log_.log().record_bytes_max() - kPageHeaderBytes);
  uint64_t id = 0;
  for (uint32_t bytes : {1u, 3967u, 3968u, 3969u, 8064u, 100'001u, largest - 1, largest}) {
    const LogTester::Outcome outcome = log_.Append(++id, bytes);
    ASSERT_EQ(outcome.result, BlockResult::kOk) << bytes;
    EXPECT_EQ(outcome.location.record_bytes, PageSlotBytes(bytes));
    EXPECT_EQ(log_.Read(id, outcome.location), BlockResult::kOk) << bytes;
  }
  EXPECT_EQ(log_.Append(99, largest + 1).result, BlockResult::kNoSpace);
}

TEST_F(SegmentLogTest, WhatIsNoPageIsRefused) {
  Open();
  AlignedBuffer slot(8192);
  EXPECT_EQ(log_.log().Append(slot.span(), false, 1), BlockResult::kInvalid);
  testing::FillPage(1, 100, 1, slot.span());
  EXPECT_EQ(log_.log().Append(slot.span().subspan(0, 100), false, 1), BlockResult::kInvalid);
  testing::FillPage(1, 8000, 1, slot.span());
  EXPECT_EQ(log_.log().Append(slot.span().subspan(0, 4096), false, 1), BlockResult::kInvalid);
  EXPECT_EQ(log_.log().Append(slot.span().subspan(1), false, 1), BlockResult::kInvalid);
  EXPECT_TRUE(log_.log().idle());
}

TEST_F(SegmentLogTest, ReadsOfWhatIsNotThereMiss) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  AlignedBuffer out(kSegment);
  const auto read = [&](uint64_t id, DiskLocation location) {
    return log_.log().Read(TestKey(id), location, out.span(), 1);
  };
  EXPECT_EQ(read(2, at), BlockResult::kMiss);
  for (const DiskLocation& wrong :
       {DiskLocation{}, DiskLocation{99, at.generation, at.offset_blocks, at.record_bytes},
        DiskLocation{at.segment, at.generation + 1, at.offset_blocks, at.record_bytes},
        DiskLocation{at.segment, at.generation, at.offset_blocks + 1, at.record_bytes},
        DiskLocation{at.segment, at.generation, 0xffffffff, at.record_bytes},
        DiskLocation{at.segment, at.generation, at.offset_blocks, at.record_bytes + 4096}}) {
    EXPECT_EQ(read(1, wrong), BlockResult::kMiss);
  }
  EXPECT_EQ(log_.log().Read(TestKey(1), at, out.span().subspan(0, 4096), 1), BlockResult::kInvalid);
  EXPECT_EQ(log_.log().Read(TestKey(1), at, out.span().subspan(1), 1), BlockResult::kInvalid);
}

TEST_F(SegmentLogTest, APageIsNotReadableBeforeItsWriteCompleted) {
  Open();
  const DiskLocation first = log_.Append(1, 1).location;
  AlignedBuffer page(4096), out(4096);
  testing::FillPage(2, 1, 1, page.span());
  ASSERT_EQ(log_.log().Append(page.span(), false, 77), BlockResult::kOk);
  DiskLocation guess = first;
  ++guess.offset_blocks;
  EXPECT_EQ(log_.log().Read(TestKey(2), guess, out.span(), 1), BlockResult::kMiss);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kAppended, 77).location, guess);
  EXPECT_EQ(log_.Read(2, guess), BlockResult::kOk);
}

TEST_F(SegmentLogTest, LimitsAnswerBusyAtOnce) {
  log_.options().reads_max = 2;
  log_.options().appends_max = 2;
  Open();
  const DiskLocation at = log_.Append(1, 1).location;
  std::vector<AlignedBuffer> pages;
  for (uint64_t i = 0; i < 3; ++i) {
    pages.emplace_back(4096);
    testing::FillPage(10 + i, 1, 1, pages.back().span());
    EXPECT_EQ(log_.log().Append(pages.back().span(), false, 10 + i),
              i < 2 ? BlockResult::kOk : BlockResult::kBusy);
  }
  for (uint64_t i = 0; i < 3; ++i) {
    pages.emplace_back(4096);
    EXPECT_EQ(log_.log().Read(TestKey(1), at, pages.back().span(), 20 + i),
              i < 2 ? BlockResult::kOk : BlockResult::kBusy);
  }
  log_.Settle();
  EXPECT_EQ(log_.TakeEvents().size(), 4u);
}

TEST_F(SegmentLogTest, RecoversAfterAKillAndAfterAClose) {
  Open();
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 25; ++id) at[id] = log_.Append(id, kPayload, id % 2 == 0).location;
  for (bool close : {false, true, false}) {
    if (close) {
      ASSERT_TRUE(log_.log().Close().ok());
    }
    Reopen();
    EXPECT_EQ(log_.log().stats().clean_start, close);
    ASSERT_EQ(log_.recovered().size(), 25u);
    for (uint64_t id = 0; id < 25; ++id) {
      EXPECT_EQ(log_.RecoveredAt(id), at[id]);
      EXPECT_EQ(log_.recovered().at(TestKey(id)).header.payload_bytes, kPayload);
      EXPECT_EQ(log_.Read(id, at[id]), BlockResult::kOk);
    }
    EXPECT_EQ(log_.log().stats().records, 25u);
    EXPECT_EQ(log_.log().stats().dropped_torn + log_.log().stats().dropped_checksum, 0u);
  }
}

TEST_F(SegmentLogTest, ManyRestartsDoNotUseUpTheLog) {
  Open();
  for (uint64_t id = 0; id < 40; ++id) {
    ASSERT_EQ(log_.Append(id, kPayload, true).result, BlockResult::kOk);
    if (id % 3 == 0) {
      ASSERT_TRUE(log_.log().Close().ok());
    }
    Reopen();
    ASSERT_EQ(log_.recovered().size(), id + 1);
  }
}

TEST_F(SegmentLogTest, NewestRecordOfAKeyWins) {
  Open();
  const DiskLocation old = log_.Append(1, kPayload, true, 1).location;
  for (uint64_t id = 10; id < 30; ++id) log_.Append(id, kPayload);
  const DiskLocation now = log_.Append(1, kPayload, true, 2).location;
  EXPECT_NE(old, now);
  Reopen();
  EXPECT_EQ(log_.RecoveredAt(1), now);
  EXPECT_EQ(log_.Read(1, now), BlockResult::kOk);
  EXPECT_EQ(log_.last_version(), 2u);
  EXPECT_EQ(log_.log().stats().dropped_stale, 1u);
}

TEST_F(SegmentLogTest, ErasedIsForgottenAtOnceAndForGood) {
  Open();
  const DiskLocation a = log_.Append(1, kPayload, true).location;
  const DiskLocation b = log_.Append(2, kPayload, true).location;
  EXPECT_EQ(log_.Erase(1, a), BlockResult::kOk);
  EXPECT_EQ(log_.Read(1, a), BlockResult::kMiss);
  EXPECT_EQ(log_.Erase(1, a), BlockResult::kMiss);
  EXPECT_EQ(log_.log().stats().records, 1u);
  for (bool close : {false, true}) {
    if (close) {
      ASSERT_TRUE(log_.log().Close().ok());
    }
    Reopen();
    EXPECT_FALSE(log_.Recovered(1));
    EXPECT_EQ(log_.RecoveredAt(2), b);
  }
  // A put after the erase is a new life.
  const DiskLocation again = log_.Append(1, kPayload, true, 3).location;
  Reopen();
  EXPECT_EQ(log_.RecoveredAt(1), again);
}

TEST_F(SegmentLogTest, AnEraseKillsOlderRecordsOfTheKeyToo) {
  Open();
  log_.Append(1, kPayload, true, 1);
  for (uint64_t id = 10; id < 25; ++id) log_.Append(id, kPayload);
  const DiskLocation now = log_.Append(1, kPayload, true, 2).location;
  ASSERT_EQ(log_.Erase(1, now), BlockResult::kOk);
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
}

TEST_F(SegmentLogTest, AnEraseThatFailedCanBeAskedForAgainWithoutItsPlace) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kMiss) << "nothing was lost so far";
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : EIO};
  };
  EXPECT_EQ(log_.Erase(1, at), BlockResult::kIo);
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kIo);
  EXPECT_GT(log_.log().stats().erases_lost, 0u);
  plan_ = nullptr;
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kOk);
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
}

TEST_F(SegmentLogTest, AnEraseUnderWayIsWaitedForAndAFlushSettlesLostOnes) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  const DiskLocation other = log_.Append(2, kPayload, true).location;
  ASSERT_EQ(log_.log().Erase(TestKey(1), at, 0), BlockResult::kOk);
  EXPECT_EQ(log_.log().Erase(TestKey(2), {}, 7), BlockResult::kMiss);
  EXPECT_EQ(log_.log().Erase(TestKey(1), {}, 7), BlockResult::kOk);
  log_.Settle();
  EXPECT_EQ(log_.TakeEvents().size(), 1u);
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kMiss);
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : EIO};
  };
  EXPECT_EQ(log_.Erase(2, other), BlockResult::kIo);
  plan_ = nullptr;
  EXPECT_EQ(log_.log().stats().erases_lost, 1u);
  EXPECT_EQ(log_.Flush(), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().erases_lost, 0u);
  EXPECT_EQ(log_.Erase(2, {}), BlockResult::kMiss);
}

TEST_F(SegmentLogTest, AFailedWriteThatReachedTheMediumIsErased) {
  Open();
  log_.Append(9, kPayload, true);  // opens the segment
  plan_ = [this](const IoRequest& request) {
    if (request.op == IoOp::kRead) return Fault{};
    std::copy_n(request.data, request.bytes,
                mem_.mutable_image().begin() + static_cast<ptrdiff_t>(request.offset));
    return Fault{.error = EIO};
  };
  const LogTester::Outcome failed = log_.Append(1, kPayload, true);
  EXPECT_EQ(failed.result, BlockResult::kIo);
  plan_ = nullptr;
  EXPECT_EQ(log_.Read(1, failed.location), BlockResult::kMiss);
  EXPECT_EQ(log_.Erase(1, failed.location), BlockResult::kOk);
  EXPECT_EQ(log_.Erase(1, failed.location), BlockResult::kMiss);
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
  EXPECT_TRUE(log_.Recovered(9));
}

TEST_F(SegmentLogTest, ManyErasesShareBlocksAndBusyIsSaid) {
  log_.options().erases_max = 100;
  Open();
  std::vector<DiskLocation> at;
  for (uint64_t id = 0; id < 300; ++id) at.push_back(log_.Append(id, 1).location);
  int accepted = 0, busy = 0;
  for (uint64_t id = 0; id < 300; ++id) {
    const BlockResult result = log_.log().Erase(TestKey(id), at[id], id % 2);
    (result == BlockResult::kOk ? accepted : busy) += 1;
    EXPECT_TRUE(result == BlockResult::kOk || result == BlockResult::kBusy);
  }
  EXPECT_EQ(accepted, 100);
  log_.Settle();
  EXPECT_EQ(log_.TakeEvents().size(), 50u);  // token 0 brings no event
  for (uint64_t id = 100; id < 300; ++id) EXPECT_EQ(log_.Erase(id, at[id]), BlockResult::kOk);
  Reopen();
  EXPECT_TRUE(log_.recovered().empty());
}

TEST_F(SegmentLogTest, FlushForgetsEverythingForGood) {
  Open();
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 40; ++id) at[id] = log_.Append(id, kPayload, true).location;
  EXPECT_EQ(log_.Flush(), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().used_bytes, 0u);
  EXPECT_EQ(log_.log().stats().records, 0u);
  for (uint64_t id = 0; id < 40; ++id) EXPECT_EQ(log_.Read(id, at[id]), BlockResult::kMiss);
  const DiskLocation after = log_.Append(99, kPayload, true).location;
  Reopen();
  ASSERT_EQ(log_.recovered().size(), 1u);
  EXPECT_EQ(log_.RecoveredAt(99), after);
  ASSERT_TRUE(log_.log().Close().ok());
  Reopen();
  EXPECT_EQ(log_.recovered().size(), 1u);
}

TEST_F(SegmentLogTest, AFlushEndsAppendsAndReadsInFlightWithAMiss) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  AlignedBuffer page(PageSlotBytes(kPayload)), out(PageSlotBytes(kPayload));
  testing::FillPage(2, kPayload, 1, page.span());
  ASSERT_EQ(log_.log().Append(page.span(), true, 2), BlockResult::kOk);
  ASSERT_EQ(log_.log().Read(TestKey(1), at, out.span(), 3), BlockResult::kOk);
  ASSERT_EQ(log_.log().Flush(4), BlockResult::kOk);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kAppended, 2).result, BlockResult::kMiss);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kRead, 3).result, BlockResult::kMiss);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kFlushed, 4).result, BlockResult::kOk);
  log_.Settle();
  Reopen();
  EXPECT_TRUE(log_.recovered().empty());
}

TEST_F(SegmentLogTest, AFullLogReclaimsItsOldestSegmentAndSaysSo) {
  Open();
  std::map<BlockKey, DiskLocation> expected;
  for (uint64_t id = 0; id < 300; ++id) {
    const LogTester::Outcome outcome = log_.Append(id, kPayload);
    ASSERT_EQ(outcome.result, BlockResult::kOk) << id;
    expected[TestKey(id)] = outcome.location;
    for (const LogEvent& event : log_.TakeEvents()) {
      ASSERT_EQ(event.kind, LogEventKind::kReclaimed);
      ASSERT_EQ(expected.at(event.key), event.location);
      expected.erase(event.key);
    }
    const SegmentLogStats stats = log_.log().stats();
    ASSERT_LE(stats.used_bytes, stats.capacity_bytes);
    ASSERT_LE(stats.capacity_bytes, kBytes);
  }
  log_.Settle();
  for (const LogEvent& event : log_.TakeEvents()) expected.erase(event.key);
  EXPECT_GT(expected.size(), 50u);  // 8 segments of 10 pages, one or two of them being reused
  EXPECT_GT(log_.log().stats().segments_reclaimed, 20u);
  EXPECT_EQ(log_.log().stats().records, expected.size());
  for (uint64_t id = 0; id < 300; ++id) {
    const auto found = expected.find(TestKey(id));
    if (found != expected.end()) {
      EXPECT_EQ(log_.Read(id, found->second), BlockResult::kOk);
    }
    if (found == expected.end()) {
      EXPECT_LT(id, 290u);
    }
  }
  Reopen();
  EXPECT_EQ(log_.recovered().size(), expected.size());
}

TEST_F(SegmentLogTest, ReclaimIsToldInPiecesAndAppendsWaitForIt) {
  Open();
  uint64_t id = 0;
  while (log_.log().stats().segments_reclaimed == 0) log_.Append(id++, 1);
  log_.TakeEvents();
  // Nobody takes events: in the end appends are busy, never wrong.
  AlignedBuffer page(PageSlotBytes(900'000));
  testing::FillPage(1'000'000, 900'000, 1, page.span());
  int busy = 0;
  std::array<LogEvent, 1> one;
  size_t reclaimed = 0;
  for (int i = 0; i < 5000; ++i) {
    if (log_.log().Append(page.span(), false, 5) == BlockResult::kBusy) ++busy;
    log_.log().Submit();
    reclaimed += log_.log().Poll(absl::MakeSpan(one));
  }
  EXPECT_GT(busy, 0);
  EXPECT_GT(reclaimed, 500u);
}

TEST_F(SegmentLogTest, TombstonesOutliveWhatTheyKill) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  ASSERT_EQ(log_.Erase(1, at), BlockResult::kOk);
  for (uint64_t id = 10; id < 400; ++id) {
    ASSERT_EQ(log_.Append(id, kPayload).result, BlockResult::kOk);
    if (id % 13 != 0) continue;
    Reopen();
    ASSERT_FALSE(log_.Recovered(1)) << id;
  }
}

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

TEST_F(SegmentLogTest, CompletionsInAnyOrder) {
  uint64_t step = 0;
  plan_ = [&step](const IoRequest&) {
    return Fault{.delay_polls = static_cast<uint32_t>(step++ * 7 % 11)};
  };
  Open();
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 150; ++id) {
    const LogTester::Outcome outcome = log_.Append(id, kPayload, id % 5 == 0);
    ASSERT_EQ(outcome.result, BlockResult::kOk);
    at[id] = outcome.location;
  }
  for (uint64_t id = 145; id < 150; ++id) EXPECT_EQ(log_.Read(id, at[id]), BlockResult::kOk);
  ASSERT_TRUE(log_.log().Close().ok());
  Reopen();
  for (const auto& [key, record] : log_.recovered()) EXPECT_NE(record.location.generation, 0u);
  EXPECT_GT(log_.recovered().size(), 50u);
}

TEST_F(SegmentLogTest, AfterCloseNothingIsAccepted) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload).location;
  ASSERT_TRUE(log_.log().Close().ok());
  ASSERT_TRUE(log_.log().Close().ok());
  EXPECT_EQ(log_.Append(2, kPayload).result, BlockResult::kIo);
  EXPECT_EQ(log_.Read(1, at), BlockResult::kIo);
  EXPECT_EQ(log_.Erase(1, at), BlockResult::kIo);
  EXPECT_EQ(log_.Flush(), BlockResult::kIo);
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

TEST_F(SegmentLogTest, WrongOptionsAreRefused) {
  const auto refused = [this](auto change) {
    LogTester tester(&device_, Options());
    change(&tester.options());
    return tester.Open().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->segment_bytes = 3 << 20; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->segment_bytes = 1 << 19; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->segment_bytes = 512 << 20; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->segment_bytes = 4 << 20; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->bytes_max = 0; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->bytes_max = 3 << 20; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->reads_max = 0; }));
  EXPECT_TRUE(refused([](SegmentLogOptions* o) { o->erases_max = 1 << 20; }));
  EXPECT_EQ(std::count(mem_.image().begin(), mem_.image().end(), 0),
            static_cast<ptrdiff_t>(kBytes));
}

// A killed process leaves completed writes in the drive's cache: readable, but not yet stable. What
// recovery reports is promised durable by its reader, so it must be stable by then.
TEST_F(SegmentLogTest, WhatRecoveryReportsSurvivesAPowerCut) {
  MemDevice mem({kBytes, 4096, 64, true});
  LogTester log(&mem, Options());
  ASSERT_TRUE(log.Open().ok());
  ASSERT_EQ(log.Append(1, kPayload).result, BlockResult::kOk);
  EXPECT_GT(mem.unsynced_writes(), 0u);
  log.Drop();
  ASSERT_TRUE(log.Open().ok());
  ASSERT_EQ(log.recovered().size(), 1u);
  log.Drop();
  mem.Crash([](const MemDevice::Write&, uint64_t) { return false; });
  ASSERT_TRUE(log.Open().ok());
  EXPECT_EQ(log.recovered().size(), 1u);
}

TEST_F(SegmentLogTest, TheDefaultSegmentFitsTheCap) {
  EXPECT_EQ(SegmentLog::DefaultSegmentBytes(1ull << 40), 64u << 20);
  EXPECT_EQ(SegmentLog::DefaultSegmentBytes(1ull << 30), 64u << 20);
  EXPECT_EQ(SegmentLog::DefaultSegmentBytes(256ull << 20), 16u << 20);
  EXPECT_EQ(SegmentLog::DefaultSegmentBytes(8ull << 20), 1u << 20);
  EXPECT_EQ(SegmentLog::DefaultSegmentBytes(0), 1u << 20);
}

}  // namespace
}  // namespace crumb
