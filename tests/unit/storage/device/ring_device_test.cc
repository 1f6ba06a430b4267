// RingDevice over a scripted ring: partial and refused submissions, results out of order, twice,
// unknown, short. One thread, no kernel.
#include "storage/device/ring_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <vector>

#include "storage/device/aligned_buffer.h"
#include "tests/unit/storage/device/scripted_ring.h"

namespace crumb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kAlign = 4096;

class RingDeviceTest : public ::testing::Test {
 protected:
  RingDeviceTest() { Make(8); }
  void Make(uint32_t depth) {
    device_ = std::make_unique<RingDevice>(RingDeviceOptions{1 << 20, kAlign, depth},
                                           std::make_unique<ScriptedRing>(&script_));
  }
  bool Queue(uint64_t token, IoOp op = IoOp::kRead, uint32_t bytes = 2 * kAlign) {
    return device_->Queue({op, token * kAlign, buffer_.data(), bytes, token});
  }
  // (token, error) of everything that is ready.
  std::vector<std::pair<uint64_t, int>> Poll() {
    std::array<IoCompletion, 64> completions;
    const size_t count = device_->Poll(absl::MakeSpan(completions));
    std::vector<std::pair<uint64_t, int>> out;
    for (size_t i = 0; i < count; ++i) {
      out.emplace_back(completions[i].token, completions[i].error);
    }
    return out;
  }

  AlignedBuffer buffer_{64 * kAlign};
  Script script_;  // outlives the device
  std::unique_ptr<RingDevice> device_;
};

using Pair = std::pair<uint64_t, int>;

TEST_F(RingDeviceTest, OneSubmitForManyRequests) {
  for (uint64_t token = 0; token < 8; ++token) ASSERT_TRUE(Queue(token));
  EXPECT_FALSE(Queue(8));
  EXPECT_EQ(script_.submits, 0);
  device_->Submit();
  EXPECT_EQ(script_.submits, 1);
  EXPECT_EQ(script_.taken.size(), 8u);
  EXPECT_EQ(device_->in_flight(), 8u);
  device_->Submit();  // nothing new: no system call
  EXPECT_EQ(script_.submits, 1);
}

TEST_F(RingDeviceTest, ResultsOutOfOrderGoToTheirRequests) {
  for (uint64_t token = 0; token < 3; ++token) ASSERT_TRUE(Queue(token));
  device_->Submit();
  script_.Answer(2, -EIO);
  script_.Answer(0, 2 * kAlign);
  EXPECT_THAT(Poll(), ElementsAre(Pair(2, EIO), Pair(0, 0)));
  script_.Answer(0, 2 * kAlign);
  EXPECT_THAT(Poll(), ElementsAre(Pair(1, 0)));
  EXPECT_EQ(device_->in_flight(), 0u);
}

TEST_F(RingDeviceTest, ShortCountIsContinuedAndReportedOnce) {
  ASSERT_TRUE(Queue(3));
  device_->Submit();
  script_.Answer(0, 2 * kAlign - 1);
  EXPECT_THAT(Poll(), IsEmpty());
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 1u);
  EXPECT_EQ(script_.taken[0].offset, 4 * kAlign);
  EXPECT_EQ(script_.taken[0].data, buffer_.data() + kAlign);
  EXPECT_EQ(script_.taken[0].bytes, kAlign);
  script_.Answer(0, kAlign);
  EXPECT_THAT(Poll(), ElementsAre(Pair(3, 0)));
  EXPECT_THAT(Poll(), IsEmpty());
}

TEST_F(RingDeviceTest, EndOfFileAndInterruptions) {
  for (uint64_t token = 0; token < 3; ++token) ASSERT_TRUE(Queue(token));
  device_->Submit();
  script_.Answer(0, 0);
  script_.Answer(0, -EINTR);
  script_.Answer(0, -EAGAIN);
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, EIO)));
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 2u);
  script_.Answer(1, 2 * kAlign);
  script_.Answer(0, 2 * kAlign);
  EXPECT_THAT(Poll(), ElementsAre(Pair(2, 0), Pair(1, 0)));
}

TEST_F(RingDeviceTest, UnknownAndRepeatedResultsCountForNobody) {
  ASSERT_TRUE(Queue(1));
  device_->Submit();
  const uint64_t first_use = script_.taken[0].user_data;
  script_.results.push_back({99, 2 * kAlign});
  script_.results.push_back({~uint64_t{0}, 2 * kAlign});
  script_.Answer(0, 2 * kAlign);
  script_.results.push_back({first_use, 2 * kAlign});
  EXPECT_THAT(Poll(), ElementsAre(Pair(1, 0)));
  EXPECT_EQ(device_->unknown_results(), 3u);
  // A late result of an earlier use of a slot is not taken for its present use.
  for (uint64_t token = 0; token < 8; ++token) ASSERT_TRUE(Queue(token));
  device_->Submit();
  script_.results.push_back({first_use, 2 * kAlign});
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(device_->in_flight(), 8u);
}

TEST_F(RingDeviceTest, AResultOfSomethingNotHandedOverIsUnknown) {
  script_.submit_answers = {0};
  ASSERT_TRUE(Queue(1));
  device_->Submit();
  script_.results.push_back({script_.prepared[0].user_data, 2 * kAlign});
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(device_->unknown_results(), 1u);
}

TEST_F(RingDeviceTest, RefusalsWithNothingInTheRingThenPartialCounts) {
  script_.submit_answers = {-EAGAIN, -EAGAIN, -EBUSY, -EAGAIN, -EAGAIN, 1, 0, 2};
  for (uint64_t token = 0; token < 4; ++token) ASSERT_TRUE(Queue(token));
  for (int turn = 0; turn < 5; ++turn) {
    device_->Submit();
    EXPECT_EQ(script_.wakes, turn + 1);  // no result would wake the loop
    EXPECT_TRUE(script_.taken.empty());
  }
  for (int turn = 0; turn < 4; ++turn) device_->Submit();
  ASSERT_EQ(script_.taken.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(script_.taken[i].offset, i * kAlign);  // in order
  for (int i = 0; i < 4; ++i) script_.Answer(0, 2 * kAlign);
  EXPECT_EQ(Poll().size(), 4u);
}

TEST_F(RingDeviceTest, InterruptedSubmitIsRepeatedAtOnce) {
  script_.submit_answers = {-EINTR, -EINTR, -EINTR};
  ASSERT_TRUE(Queue(1));
  device_->Submit();
  EXPECT_EQ(script_.submits, 4);
  EXPECT_EQ(script_.taken.size(), 1u);
}

TEST_F(RingDeviceTest, EndlessRefusalFailsTheRequestsInTheEnd) {
  ASSERT_TRUE(Queue(1));
  ASSERT_TRUE(Queue(2));
  uint32_t turns = 0;
  std::vector<Pair> done;
  while (done.empty()) {
    script_.submit_answers = {-EAGAIN};
    device_->Submit();
    done = Poll();
    ASSERT_LE(++turns, kSubmitRefusalsMax);
  }
  EXPECT_THAT(done, ElementsAre(Pair(1, EAGAIN), Pair(2, EAGAIN)));
  EXPECT_EQ(script_.withdrawals, 1);
  EXPECT_TRUE(script_.prepared.empty());  // never runs later into memory that was given back
}

TEST_F(RingDeviceTest, ABrokenRingFailsItsRequestsAtOnce) {
  script_.submit_answers = {-ENXIO};
  ASSERT_TRUE(Queue(1));
  device_->Submit();
  EXPECT_THAT(Poll(), ElementsAre(Pair(1, ENXIO)));
  EXPECT_EQ(script_.withdrawals, 1);
}

TEST_F(RingDeviceTest, AFullSubmissionQueueKeepsTheRest) {
  script_.queue_max = 3;
  for (uint64_t token = 0; token < 8; ++token) ASSERT_TRUE(Queue(token));
  for (int turn = 0; turn < 3; ++turn) device_->Submit();
  EXPECT_EQ(script_.taken.size(), 8u);
}

TEST_F(RingDeviceTest, ImpossibleRequestsCompleteWithInvalid) {
  EXPECT_TRUE(device_->Queue({IoOp::kRead, 1 << 20, buffer_.data(), kAlign, 5}));
  EXPECT_TRUE(device_->Queue({IoOp::kWrite, 0, buffer_.data() + 1, kAlign, 6}));
  device_->Submit();
  EXPECT_THAT(Poll(), ElementsAre(Pair(5, EINVAL), Pair(6, EINVAL)));
  EXPECT_EQ(script_.submits, 0);
}

TEST_F(RingDeviceTest, RegisteredMemoryIsUsedOnlyWhereARequestLiesInOneSlice) {
  const std::vector<MutableBytes> slices = {buffer_.span().subspan(0, 4 * kAlign),
                                            buffer_.span().subspan(4 * kAlign, 4 * kAlign)};
  ASSERT_TRUE(device_->RegisterBuffers(slices).ok());
  const auto queue = [this](uint64_t blocks_from, uint64_t token) {
    return device_->Queue(
        {IoOp::kRead, 0, buffer_.data() + blocks_from * kAlign, 2 * kAlign, token});
  };
  ASSERT_TRUE(queue(0, 0));
  ASSERT_TRUE(queue(3, 1));  // straddles both
  ASSERT_TRUE(queue(6, 2));
  ASSERT_TRUE(queue(8, 3));                             // outside
  EXPECT_FALSE(device_->RegisterBuffers(slices).ok());  // something is in flight
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 4u);
  EXPECT_EQ(script_.taken[0].buffer, 0);
  EXPECT_EQ(script_.taken[1].buffer, -1);
  EXPECT_EQ(script_.taken[2].buffer, 1);
  EXPECT_EQ(script_.taken[3].buffer, -1);
}

TEST_F(RingDeviceTest, LeavingWaitsForWhatTheKernelHolds) {
  ASSERT_TRUE(Queue(1));
  ASSERT_TRUE(Queue(2));
  device_->Submit();
  ASSERT_TRUE(Queue(3));
  device_.reset();
  EXPECT_EQ(script_.waits, 2);
  EXPECT_TRUE(script_.taken.empty());
}

TEST_F(RingDeviceTest, CompletionsBeyondTheCallersRoomComeLater) {
  for (uint64_t token = 0; token < 8; ++token) ASSERT_TRUE(Queue(token));
  device_->Submit();
  while (!script_.taken.empty()) script_.Answer(0, 2 * kAlign);
  std::array<IoCompletion, 3> few;
  size_t total = 0;
  for (int i = 0; i < 3; ++i) {
    const size_t count = device_->Poll(absl::MakeSpan(few));
    for (size_t k = 0; k < count; ++k) EXPECT_EQ(few[k].token, total + k);
    total += count;
  }
  EXPECT_EQ(total, 8u);
}

}  // namespace
}  // namespace crumb
