// The life of pages in one log on a memory device: append, read, recover, close, refuse.
#include <gtest/gtest.h>

#include "tests/unit/storage/segment/segment_log_fixture.h"

namespace crumb {
namespace {

using testing::LogTester;
using testing::TestKey;

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
