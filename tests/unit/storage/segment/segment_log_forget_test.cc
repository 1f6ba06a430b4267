// What a log lets go: erase, flush, reclaim, tombstones, and that none of it comes back.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/unit/storage/segment/segment_log_fixture.h"

namespace crumb {
namespace {

using testing::LogTester;
using testing::TestKey;

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

}  // namespace
}  // namespace crumb
