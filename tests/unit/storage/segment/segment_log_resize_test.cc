// Another number of segments while the log runs: what stays is exact, what is given up is told and
// gone, what was erased stays erased, whatever lay where.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "tests/unit/storage/segment/segment_log_fixture.h"

namespace crumb {
namespace {

using testing::TestKey;

constexpr uint64_t kToken = 77;
constexpr uint32_t kSegments = kBytes / kSegment;

class ResizeTest : public SegmentLogTest {
 protected:
  // Appends until the log writes into `segment`; pages by id.
  void FillTo(uint32_t segment) {
    while (true) {
      const uint64_t id = next_id_++;
      const DiskLocation at = log_.Append(id, kPayload).location;
      ASSERT_NE(at.generation, 0u);
      pages_[id] = at;
      if (at.segment == segment) return;
      ASSERT_LT(next_id_, 10'000u);
    }
  }
  // The first page of a segment.
  uint64_t PageIn(uint32_t segment) const {
    for (const auto& [id, at] : pages_) {
      if (at.segment == segment) return id;
    }
    return 0;
  }
  BlockResult Resize(uint32_t segments) {
    const BlockResult asked = log_.log().Resize(uint64_t{segments} * kSegment, kToken);
    if (asked != BlockResult::kOk) return asked;
    return log_.WaitFor(LogEventKind::kResized, kToken).result;
  }
  // Ids of pages that the log said it gave up.
  std::set<uint64_t> Told() {
    std::map<BlockKey, uint64_t> ids;
    for (const auto& [id, at] : pages_) ids[TestKey(id)] = id;
    std::set<uint64_t> told;
    log_.Settle();
    for (const LogEvent& event : log_.TakeEvents()) {
      if (event.kind == LogEventKind::kReclaimed) told.insert(ids.at(event.key));
    }
    return told;
  }
  void RestartWith(uint64_t bytes) {
    log_.options().bytes_max = bytes;
    Reopen();
  }

  uint64_t next_id_ = 100;
  std::map<uint64_t, DiskLocation> pages_;
};

TEST_F(ResizeTest, ALargerLogReclaimsLater) {
  Open();
  FillTo(6);
  ASSERT_TRUE(mem_.Resize(2 * kBytes).ok());
  const uint64_t before = log_.log().stats().capacity_bytes;
  EXPECT_EQ(Resize(2 * kSegments), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().segments, uint64_t{2} * kSegments);
  EXPECT_GT(log_.log().stats().capacity_bytes, 2 * before - kSegment);
  FillTo(2 * kSegments - 2);
  EXPECT_EQ(log_.log().stats().segments_reclaimed, 0u);
  for (const auto& [id, at] : pages_) EXPECT_EQ(log_.Read(id, at), BlockResult::kOk);
  RestartWith(2 * kBytes);
  EXPECT_EQ(log_.recovered().size(), pages_.size());
}

TEST_F(ResizeTest, ASmallerLogTellsWhatItGaveUpAndKeepsTheRest) {
  Open();
  FillTo(6);
  EXPECT_EQ(Resize(4), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().segments, 4u);
  const std::set<uint64_t> told = Told();
  for (const auto& [id, at] : pages_) {
    const bool gone = at.segment >= 4;
    EXPECT_EQ(told.contains(id), gone) << id;
    EXPECT_EQ(log_.Read(id, at), gone ? BlockResult::kMiss : BlockResult::kOk) << id;
  }
  for (uint64_t id = 5000; id < 5050; ++id) {
    EXPECT_LT(log_.Append(id, kPayload).location.segment, 4u);
  }
  ASSERT_TRUE(log_.log().Close().ok());
  ASSERT_TRUE(mem_.Resize(4 * kSegment).ok());
  RestartWith(4 * kSegment);
  EXPECT_GT(log_.recovered().size(), 20u);
  for (const auto& [key, record] : log_.recovered()) EXPECT_LT(record.location.segment, 4u);
}

TEST_F(ResizeTest, WhatWasGivenUpDoesNotComeBackWhenTheLogGrowsAgain) {
  Open();
  FillTo(6);
  ASSERT_EQ(Resize(4), BlockResult::kOk);
  const std::set<uint64_t> told = Told();
  ASSERT_FALSE(told.empty());
  RestartWith(kBytes);  // a kill: the file was not cut, the configuration says the old size
  EXPECT_EQ(log_.log().stats().segments, uint64_t{kSegments});
  for (const uint64_t id : told) EXPECT_FALSE(log_.Recovered(id)) << id;
  EXPECT_EQ(log_.recovered().size(), pages_.size() - told.size());
}

// The tombstone lies behind the new end, what it hides before it. By its footer, and by scanning
// where the footer rotted or was never written.
TEST_F(ResizeTest, ErasedStaysErased) {
  for (const bool rotten : {false, true}) {
    next_id_ = 100;
    pages_.clear();
    std::fill(mem_.mutable_image().begin(), mem_.mutable_image().end(), 0);
    Open();
    FillTo(5);
    const uint64_t victim = PageIn(2);
    ASSERT_EQ(log_.Erase(victim, pages_.at(victim)), BlockResult::kOk);
    FillTo(6);
    log_.Settle();
    if (rotten) Block(6 * uint64_t{kSegment} - 2 * kLogBlock)[8] ^= 1;
    ASSERT_EQ(Resize(4), BlockResult::kOk);
    ASSERT_EQ(log_.log().stats().erases_lost, 0u);
    RestartWith(kBytes);
    EXPECT_FALSE(log_.Recovered(victim)) << rotten;
    EXPECT_TRUE(log_.Recovered(victim + 1)) << rotten;
    log_.Drop();
  }
}

TEST_F(ResizeTest, ErasedStaysErasedIfItsTombstoneLiesInTheOpenSegment) {
  Open();
  FillTo(5);
  const uint64_t victim = PageIn(2);
  ASSERT_EQ(log_.Erase(victim, pages_.at(victim)), BlockResult::kOk);
  ASSERT_EQ(Resize(4), BlockResult::kOk);
  EXPECT_EQ(log_.Append(5000, kPayload).location.segment, 0u);  // the oldest that stays
  RestartWith(kBytes);
  EXPECT_FALSE(log_.Recovered(victim));
  EXPECT_TRUE(log_.Recovered(victim + 1));
}

TEST_F(ResizeTest, ReadsInFlightEndBeforeTheirSegmentGoes) {
  Open();
  FillTo(6);
  const uint64_t id = std::find_if(pages_.begin(), pages_.end(), [](const auto& page) {
                        return page.second.segment == 5;
                      })->first;
  bool hold = true;
  plan_ = [&hold](const IoRequest& request) {
    return Fault{.delay_polls = request.op == IoOp::kRead && hold ? 200u : 0u};
  };
  AlignedBuffer out(pages_.at(id).record_bytes);
  ASSERT_EQ(log_.log().Read(TestKey(id), pages_.at(id), out.span(), 5), BlockResult::kOk);
  ASSERT_EQ(log_.log().Resize(4 * kSegment, kToken), BlockResult::kOk);
  bool read = false, resized = false;
  for (int turn = 0; turn < 1000 && !(read && resized); ++turn) {
    log_.Turn();
    for (const LogEvent& event : log_.TakeEvents()) {
      read = read || event.kind == LogEventKind::kRead;
      if (event.kind == LogEventKind::kResized) {
        EXPECT_TRUE(read) << "the device may be cut while it reads";
        resized = true;
      }
    }
  }
  EXPECT_TRUE(read && resized);
}

TEST_F(ResizeTest, WhatCannotBeIsRefused) {
  Open();
  FillTo(1);
  EXPECT_EQ(log_.log().Resize(3 * kSegment, 1), BlockResult::kInvalid);
  EXPECT_EQ(log_.log().Resize(kBytes + kSegment, 1), BlockResult::kInvalid);
  EXPECT_EQ(Resize(kSegments), BlockResult::kOk);  // as it is
  ASSERT_EQ(log_.log().Resize(5 * kSegment, kToken), BlockResult::kOk);
  EXPECT_EQ(log_.log().Resize(4 * kSegment, 2), BlockResult::kBusy);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kResized, kToken).result, BlockResult::kOk);
  EXPECT_EQ(Resize(4), BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().segments, 4u);
}

TEST_F(ResizeTest, AnErrorWhileItGrowsLeavesTheOldSize) {
  Open();
  FillTo(1);
  ASSERT_TRUE(mem_.Resize(2 * kBytes).ok());
  plan_ = [](const IoRequest& request) {
    return Fault{.error = request.offset >= kBytes + kSegment ? EIO : 0};
  };
  EXPECT_EQ(Resize(2 * kSegments), BlockResult::kIo);
  EXPECT_EQ(log_.log().stats().segments, uint64_t{kSegments});
  plan_ = nullptr;
  EXPECT_EQ(Resize(2 * kSegments), BlockResult::kOk);
}

TEST_F(ResizeTest, ASuperblockThatCannotBeWrittenGivesNothingUpUntilItCan) {
  Open();
  FillTo(6);
  plan_ = [](const IoRequest& request) {
    const bool write = request.op == IoOp::kWriteDurable;
    return Fault{.error = write && request.offset < kLogHeadBytes ? EIO : 0};
  };
  ASSERT_EQ(log_.log().Resize(4 * kSegment, kToken), BlockResult::kOk);
  for (int turn = 0; turn < 200; ++turn) log_.Turn();
  for (const auto& [id, at] : pages_) EXPECT_EQ(log_.Read(id, at), BlockResult::kOk);
  plan_ = nullptr;
  log_.clock().Advance(10'000'000);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kResized, kToken).result, BlockResult::kOk);
  EXPECT_EQ(log_.log().stats().segments, 4u);
}

TEST_F(ResizeTest, AFlushInTheMiddleForgetsEverything) {
  Open();
  FillTo(6);
  ASSERT_EQ(log_.log().Resize(4 * kSegment, kToken), BlockResult::kOk);
  EXPECT_EQ(log_.Flush(), BlockResult::kOk);
  EXPECT_EQ(log_.WaitFor(LogEventKind::kResized, kToken).result, BlockResult::kOk);
  for (const auto& [id, at] : pages_) EXPECT_EQ(log_.Read(id, at), BlockResult::kMiss);
  EXPECT_EQ(log_.Append(5000, kPayload, true).result, BlockResult::kOk);
  RestartWith(kBytes);
  EXPECT_EQ(log_.recovered().size(), 1u);
}

TEST_F(ResizeTest, ACloseInTheMiddleIsWhole) {
  for (int turns = 0; turns < 40; ++turns) {
    std::fill(mem_.mutable_image().begin(), mem_.mutable_image().end(), 0);
    pages_.clear();
    next_id_ = 100;
    Open();
    FillTo(6);
    ASSERT_EQ(log_.log().Resize(4 * kSegment, kToken), BlockResult::kOk);
    for (int turn = 0; turn < turns; ++turn) log_.Turn();
    ASSERT_TRUE(log_.log().Close().ok());
    RestartWith(kBytes);
    EXPECT_TRUE(log_.log().stats().clean_start);
    EXPECT_GT(log_.recovered().size(), 30u);
    for (const auto& [key, record] : log_.recovered()) {
      const auto page = std::find_if(pages_.begin(), pages_.end(), [&](const auto& entry) {
        return TestKey(entry.first) == key;
      });
      ASSERT_NE(page, pages_.end());
      EXPECT_EQ(log_.Read(page->first, record.location), BlockResult::kOk);
    }
    log_.Drop();
  }
}

TEST_F(ResizeTest, UpAndDownUnderAppends) {
  Open();
  ASSERT_TRUE(mem_.Resize(2 * kBytes).ok());
  for (uint32_t round = 0; round < 30; ++round) {
    const uint32_t segments = round % 2 == 0 ? 4 + round % 5 : 2 * kSegments - round % 3;
    ASSERT_EQ(log_.log().Resize(uint64_t{segments} * kSegment, kToken), BlockResult::kOk);
    for (int i = 0; i < 12; ++i) {
      const uint64_t id = next_id_++;
      pages_[id] = log_.Append(id, kPayload, round % 3 == 0).location;
      ASSERT_NE(pages_[id].generation, 0u);
      if (i % 4 == 0) log_.Erase(id, pages_[id]);
    }
    ASSERT_EQ(log_.WaitFor(LogEventKind::kResized, kToken).result, BlockResult::kOk);
    ASSERT_EQ(log_.log().stats().segments, segments);
    ASSERT_LE(log_.log().stats().used_bytes, log_.log().stats().capacity_bytes);
  }
  for (const auto& [id, at] : pages_) {
    const BlockResult result = log_.Read(id, at);
    EXPECT_TRUE(result == BlockResult::kOk || result == BlockResult::kMiss) << id;
  }
}

}  // namespace
}  // namespace crumb
