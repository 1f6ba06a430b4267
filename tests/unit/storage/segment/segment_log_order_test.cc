// What a segment held never comes back once the log has let go of it, in whatever order segments
// can be written anew: marks that cannot be written, reads that hold a segment, segments that are
// retired.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/unit/storage/segment/segment_log_fixture.h"

namespace crumb {
namespace {

using testing::TestKey;

constexpr uint32_t kSegments = kBytes / kSegment;
constexpr uint64_t kMarkOfFirst = kSegment - kLogBlock;

class OrderTest : public SegmentLogTest {
 protected:
  // Appends other pages until the log writes into the segment with this number, counted from the
  // first one that was ever opened.
  void FillTo(uint64_t number) {
    while (opened_ <= number) {
      const DiskLocation at = log_.Append(next_id_++, kPayload).location;
      ASSERT_NE(at.generation, 0u);
      if (at.generation != last_generation_) ++opened_;
      last_generation_ = at.generation;
      ASSERT_LT(next_id_, 10'000u);
    }
  }
  // Four pages of the segment turn out to be bad.
  void Quarantine(uint32_t segment) {
    std::array<LogRecord, 8> records;
    FillTo(opened_);  // sealed
    log_.Settle();
    ASSERT_GE(log_.log().Records(segment, 0, absl::MakeSpan(records)), 5u);
    size_t bad = 0;
    for (const LogRecord& record : records) {
      if (record.key == TestKey(1) || ++bad > 4) continue;
      log_.log().ReportCorrupt(record.key, record.location);
    }
    log_.Settle();
    ASSERT_EQ(log_.log().stats().segments_quarantined, 1u);
  }

  uint64_t next_id_ = 100, opened_ = 0;
  uint32_t last_generation_ = 0;
};

TEST_F(OrderTest, NothingComesBackFromASegmentWhoseMarkCannotBeWritten) {
  log_.options().errors_max = 1000;
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  ASSERT_EQ(at.segment, 0u);
  FillTo(2);
  ASSERT_EQ(log_.Erase(1, at), BlockResult::kOk);
  plan_ = [](const IoRequest& request) {
    const bool mark = request.op == IoOp::kWriteDurable && request.offset == kMarkOfFirst;
    return Fault{.error = mark ? EIO : 0};
  };
  for (uint64_t number = 3; number < 3 * kSegments; ++number) {
    ASSERT_NO_FATAL_FAILURE(FillTo(number));
    Reopen();
    ASSERT_FALSE(log_.Recovered(1)) << "when segment " << number << " was open";
  }
}

TEST_F(OrderTest, NothingComesBackFromASegmentThatAReadHolds) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  const DiskLocation held = log_.Append(2, kPayload, true).location;
  ASSERT_EQ(held.segment, at.segment);
  FillTo(1);
  ASSERT_EQ(log_.Erase(1, at), BlockResult::kOk);
  plan_ = [](const IoRequest& request) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 20'000u : 0};
  };
  AlignedBuffer out(held.record_bytes);
  ASSERT_EQ(log_.log().Read(TestKey(2), held, out.span(), 3), BlockResult::kOk);
  log_.Turn();
  // The segment of the tombstone is written over before the one that the read holds.
  ASSERT_NO_FATAL_FAILURE(FillTo(kSegments + 2));
  plan_ = nullptr;
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
}

TEST_F(OrderTest, APageOfAReclaimedSegmentIsErasedAlsoWhileAStartWouldStillFindIt) {
  Open();
  const DiskLocation at = log_.Append(1, kPayload, true).location;
  plan_ = [](const IoRequest& request) {
    const bool head = request.op == IoOp::kWriteDurable && request.offset < kLogHeadBytes;
    return Fault{.delay_polls = head ? 20'000u : 0};
  };
  FillTo(kSegments - 1);
  while (log_.log().stats().segments_reclaimed == 0) log_.Append(next_id_++, kPayload);
  EXPECT_EQ(log_.Read(1, at), BlockResult::kMiss);
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kOk) << "a power cut now would bring it back";
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
}

TEST_F(OrderTest, AnEraseOfAPageThatWasReclaimedLongAgoCostsNothing) {
  Open();
  log_.Append(1, kPayload, true);
  FillTo(kSegments + 1);
  log_.Settle();
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kMiss);
}

TEST_F(OrderTest, AnOlderPageDoesNotComeBackWhenTheSegmentOfTheNewOneIsQuarantined) {
  for (const bool rotten : {false, true}) {
    SCOPED_TRACE(rotten ? "its payload rotted as well" : "");
    std::fill(mem_.mutable_image().begin(), mem_.mutable_image().end(), uint8_t{0});
    opened_ = last_generation_ = 0;
    Open();
    log_.Append(1, kPayload, true, 1);
    FillTo(1);
    const DiskLocation now = log_.Append(1, kPayload, true, 2).location;
    ASSERT_EQ(now.segment, 1u);
    FillTo(2);
    if (rotten) {
      const uint64_t at = now.segment * uint64_t{kSegment} + now.offset_blocks * kLogBlock;
      Block(at + 8 * kLogBlock)[17] ^= 1;
    }
    ASSERT_NO_FATAL_FAILURE(Quarantine(1));
    Reopen();
    EXPECT_FALSE(log_.Recovered(1));
    Reopen();
    EXPECT_FALSE(log_.Recovered(1)) << "the second start";
  }
}

TEST_F(OrderTest, NorWhenTheLogBecomesSmallerAfterIt) {
  Open();
  log_.Append(1, kPayload, true, 1);
  FillTo(kSegments - 3);
  const DiskLocation now = log_.Append(1, kPayload, true, 2).location;
  ASSERT_EQ(now.segment, kSegments - 3);
  FillTo(kSegments - 2);
  ASSERT_NO_FATAL_FAILURE(Quarantine(now.segment));
  ASSERT_EQ(log_.log().Resize(4 * kSegment, 7), BlockResult::kOk);
  ASSERT_EQ(log_.WaitFor(LogEventKind::kResized, 7).result, BlockResult::kOk);
  log_.options().bytes_max = 4 * kSegment;
  Reopen();
  EXPECT_FALSE(log_.Recovered(1));
  EXPECT_GT(log_.recovered().size(), 5u);
}

TEST_F(OrderTest, PagesOfASegmentThatIsBeingRetiredAreErasedToo) {
  for (const int error : {0, EIO}) {
    SCOPED_TRACE(error);
    std::fill(mem_.mutable_image().begin(), mem_.mutable_image().end(), uint8_t{0});
    opened_ = last_generation_ = 0;
    Open();
    log_.Append(1, kPayload, true);
    FillTo(2);
    log_.Settle();
    plan_ = [error](const IoRequest& request) {
      const bool mark = request.op == IoOp::kWriteDurable && request.offset == kMarkOfFirst;
      return Fault{.error = mark ? error : 0, .delay_polls = mark ? 50u : 0};
    };
    std::array<LogRecord, 8> records;
    ASSERT_EQ(log_.log().Records(0, 0, absl::MakeSpan(records)), 8u);
    for (size_t i = 1; i < 5; ++i) log_.log().ReportCorrupt(records[i].key, records[i].location);
    while (log_.log().stats().segments_quarantined == 0) log_.Turn();
    EXPECT_EQ(log_.Erase(1, {}), BlockResult::kOk) << "a start would find it now";
    log_.Settle();
    EXPECT_EQ(log_.Erase(1, {}), error == 0 ? BlockResult::kMiss : BlockResult::kOk);
    plan_ = nullptr;
    Reopen();
    EXPECT_FALSE(log_.Recovered(1));
  }
}

TEST_F(OrderTest, AFlushThatCouldNotBeWrittenIsWrittenLater) {
  Open();
  for (uint64_t id = 0; id < 40; ++id) log_.Append(id, kPayload, true);
  plan_ = [](const IoRequest& request) {
    const bool head = request.op == IoOp::kWriteDurable && request.offset < kLogHeadBytes;
    return Fault{.error = head ? EIO : 0};
  };
  EXPECT_EQ(log_.Flush(), BlockResult::kIo);
  EXPECT_TRUE(log_.log().stats().head_lost);
  EXPECT_EQ(log_.Erase(1, {}), BlockResult::kIo) << "no segment can be opened before it";
  EXPECT_EQ(log_.Append(99, kPayload, true).result, BlockResult::kIo);
  plan_ = nullptr;
  log_.clock().Advance(log_.options().retry_off_us);
  log_.Settle();
  EXPECT_FALSE(log_.log().stats().head_lost);
  Reopen();
  EXPECT_TRUE(log_.recovered().empty());
}

}  // namespace
}  // namespace crumb
