// RingDevice: small neighbours go as one vectored operation, and each request still has exactly one
// answer of its own, wherever a count ends and whatever fails. One thread, no kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/ring_device.h"
#include "tests/unit/storage/device/scripted_ring.h"

namespace crumb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr uint32_t kAlign = 4096;
constexpr uint64_t kBytes = 4 << 20;

class RingMergeTest : public ::testing::Test {
 protected:
  RingMergeTest() : disk_(kBytes) {
    Rng rng(5);
    for (uint8_t& byte : disk_) byte = static_cast<uint8_t>(rng.Next());
    Make({.bytes = kBytes, .alignment = kAlign, .depth = 64});
  }
  void Make(const RingDeviceOptions& options) {
    device_ = std::make_unique<RingDevice>(options, std::make_unique<ScriptedRing>(&script_));
  }
  // Blocks of the disk that go to, or come from, the same blocks of the buffer.
  void Queue(uint64_t token, uint64_t block, uint32_t blocks = 1, IoOp op = IoOp::kRead) {
    ASSERT_TRUE(device_->Queue(
        {op, block * kAlign, buffer_.data() + block * kAlign, blocks * kAlign, token}));
  }
  std::map<uint64_t, int> Poll() {
    std::array<IoCompletion, 64> some;
    const size_t count = device_->Poll(absl::MakeSpan(some));
    std::map<uint64_t, int> out;
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(out.emplace(some[i].token, some[i].error).second) << "reported twice";
    }
    return out;
  }
  // Moves the first `bytes` of an operation between disk and memory, as a kernel would.
  void Transfer(const RingOp& op, uint64_t bytes) {
    const iovec one = {op.data, op.bytes};
    const iovec* vectors = op.vector_count > 0 ? op.vectors : &one;
    uint64_t at = op.offset;
    for (uint32_t i = 0; i < std::max(op.vector_count, 1u) && bytes > 0; ++i) {
      const uint64_t part = std::min<uint64_t>(bytes, vectors[i].iov_len);
      if (op.op == IoOp::kRead) {
        std::memcpy(vectors[i].iov_base, disk_.data() + at, part);
      } else {
        std::memcpy(disk_.data() + at, vectors[i].iov_base, part);
      }
      at += part;
      bytes -= part;
    }
  }
  void AnswerFirst(int32_t result) {
    if (result > 0) Transfer(script_.taken[0], static_cast<uint64_t>(result));
    script_.Answer(0, result);
  }
  void AnswerAllInFull() {
    while (!script_.taken.empty()) AnswerFirst(static_cast<int32_t>(script_.taken[0].bytes));
  }

  std::vector<uint8_t> disk_;
  AlignedBuffer buffer_{kBytes};
  Script script_;  // outlives the device
  std::unique_ptr<RingDevice> device_;
};

TEST_F(RingMergeTest, NeighboursBecomeOneOperation) {
  for (uint64_t i = 0; i < 4; ++i) Queue(i, 10 + 2 * i, 2, IoOp::kWriteDurable);
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 1u);
  const RingOp& op = script_.taken[0];
  EXPECT_EQ(op.op, IoOp::kWriteDurable);
  EXPECT_EQ(op.offset, 10 * kAlign);
  EXPECT_EQ(op.bytes, 8 * kAlign);
  ASSERT_EQ(op.vector_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(op.vectors[i].iov_base, buffer_.data() + (10 + 2 * i) * kAlign);
    EXPECT_EQ(op.vectors[i].iov_len, 2 * kAlign);
  }
  EXPECT_EQ(device_->in_flight(), 4u);
  AnswerAllInFull();
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, 0), Pair(1, 0), Pair(2, 0), Pair(3, 0)));
  EXPECT_EQ(device_->in_flight(), 0u);
}

TEST_F(RingMergeTest, OnlyNeighboursOfOneKindInTheOrderOfTheQueue) {
  Queue(0, 0);
  Queue(1, 1, 1, IoOp::kWrite);         // another operation
  Queue(2, 3, 1, IoOp::kWrite);         // a gap
  Queue(3, 4, 1, IoOp::kWriteDurable);  // another promise
  ASSERT_TRUE(device_->Queue({.op = IoOp::kSync, .token = 4}));
  ASSERT_TRUE(device_->Queue({.op = IoOp::kSync, .token = 5}));
  Queue(6, 5, 1, IoOp::kWriteDurable);  // behind a sync
  Queue(7, 20, 17);                     // large
  Queue(8, 37);
  Queue(9, 36);  // backwards
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 10u);
  for (const RingOp& op : script_.taken) EXPECT_EQ(op.vector_count, 0u);
}

TEST_F(RingMergeTest, AnOperationHasItsLimits) {
  for (uint64_t i = 0; i < 40; ++i) Queue(i, i);
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 2u);
  EXPECT_EQ(script_.taken[0].vector_count, kMergedRequestsMax);
  EXPECT_EQ(script_.taken[1].vector_count, 40 - kMergedRequestsMax);
  AnswerAllInFull();
  EXPECT_EQ(Poll().size(), 40u);
  for (uint64_t i = 0; i < 20; ++i) Queue(i, 16 * i, 16);
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 2u);
  EXPECT_EQ(script_.taken[0].bytes, kMergedBytesMax);
  AnswerAllInFull();
  EXPECT_EQ(Poll().size(), 20u);
}

TEST_F(RingMergeTest, SwitchedOffNothingIsMerged) {
  Make({.bytes = kBytes, .alignment = kAlign, .depth = 64, .merge_bytes_max = 0});
  Queue(0, 0);
  Queue(1, 1);
  device_->Submit();
  EXPECT_EQ(script_.taken.size(), 2u);
}

// Every count that a kernel could return, then whatever it takes: one answer each, the right bytes.
TEST_F(RingMergeTest, ACountMayEndAnywhere) {
  constexpr uint32_t kBlocks[] = {1, 2, 1, 3};
  constexpr uint32_t kTotal = 7 * kAlign;
  for (const IoOp op : {IoOp::kRead, IoOp::kWrite}) {
    for (uint32_t count = 0; count <= kTotal; count += 512) {
      for (const uint32_t odd : {0u, 1u}) {
        if (count + odd == 0 || count + odd > kTotal) continue;
        std::memset(buffer_.data(), static_cast<int>(count / 512), kTotal);
        uint64_t block = 0;
        for (uint64_t i = 0; i < 4; block += kBlocks[i++]) Queue(i, block, kBlocks[i], op);
        device_->Submit();
        ASSERT_EQ(script_.taken.size(), 1u);
        AnswerFirst(static_cast<int32_t>(count + odd));
        std::map<uint64_t, int> done = Poll();
        for (int turn = 0; turn < 8 && done.size() < 4; ++turn) {
          device_->Submit();
          for (const RingOp& again : script_.taken) ASSERT_EQ(again.vector_count, 0u);
          AnswerAllInFull();
          for (const auto& [token, error] : Poll()) ASSERT_TRUE(done.emplace(token, error).second);
        }
        ASSERT_THAT(done, ElementsAre(Pair(0, 0), Pair(1, 0), Pair(2, 0), Pair(3, 0))) << count;
        ASSERT_EQ(std::memcmp(buffer_.data(), disk_.data(), kTotal), 0) << count;
        ASSERT_EQ(device_->in_flight(), 0u);
      }
    }
  }
}

TEST_F(RingMergeTest, OneBadRequestFailsAlone) {
  for (uint64_t i = 0; i < 4; ++i) Queue(i, i, 1, IoOp::kWriteDurable);
  device_->Submit();
  AnswerFirst(-EIO);
  EXPECT_TRUE(Poll().empty());
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(script_.taken[i].vector_count, 0u);
    EXPECT_EQ(script_.taken[i].offset, i * kAlign);
  }
  script_.Answer(2, -EIO);
  AnswerAllInFull();
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, 0), Pair(1, 0), Pair(2, EIO), Pair(3, 0)));
}

TEST_F(RingMergeTest, TransientErrorsAreTriedAgain) {
  for (const int error : {EINTR, EAGAIN, EBUSY}) {
    Queue(0, 0);
    Queue(1, 1);
    device_->Submit();
    ASSERT_EQ(script_.taken.size(), 1u);
    AnswerFirst(-error);
    EXPECT_TRUE(Poll().empty());
    device_->Submit();
    AnswerAllInFull();
    EXPECT_THAT(Poll(), ElementsAre(Pair(0, 0), Pair(1, 0)));
  }
}

TEST_F(RingMergeTest, TheEndOfTheFileIsFoundByTheRequestsBehindIt) {
  for (uint64_t i = 0; i < 3; ++i) Queue(i, i);
  device_->Submit();
  AnswerFirst(kAlign);
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, 0)));
  device_->Submit();
  ASSERT_EQ(script_.taken.size(), 2u);
  AnswerFirst(0);
  AnswerFirst(0);
  EXPECT_THAT(Poll(), ElementsAre(Pair(1, EIO), Pair(2, EIO)));
}

TEST_F(RingMergeTest, MoreThanWasAskedForIsBelievedByNobody) {
  Queue(0, 0);
  Queue(1, 1);
  device_->Submit();
  script_.Answer(0, 2 * kAlign + 1);
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, EIO), Pair(1, EIO)));
}

TEST_F(RingMergeTest, ResultsOfNobodyCountForNobody) {
  Queue(0, 0);
  Queue(1, 1);
  device_->Submit();
  const uint64_t leader = script_.taken[0].user_data;
  script_.results.push_back({leader + 1, kAlign});  // the slot of the second, in no ring
  script_.results.push_back({leader + 7, kAlign});
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(device_->unknown_results(), 2u);
  AnswerAllInFull();
  script_.results.push_back({leader, 2 * kAlign});  // again
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, 0), Pair(1, 0)));
  EXPECT_EQ(device_->unknown_results(), 3u);
}

TEST_F(RingMergeTest, RefusedInTheEndAllOfThemFail) {
  Queue(0, 0);
  Queue(1, 1);
  script_.submit_answers = {-ENXIO};
  device_->Submit();
  EXPECT_THAT(Poll(), ElementsAre(Pair(0, ENXIO), Pair(1, ENXIO)));
  EXPECT_EQ(script_.withdrawals, 1);
  Queue(2, 2);
  Queue(3, 3);
  script_.submit_answers = {-EAGAIN, -EAGAIN, -EAGAIN};
  for (int turn = 0; turn < 4; ++turn) device_->Submit();  // nothing in flight, then taken
  ASSERT_EQ(script_.taken.size(), 1u);
  AnswerAllInFull();
  EXPECT_THAT(Poll(), ElementsAre(Pair(2, 0), Pair(3, 0)));
}

// A random life: merged or not, any count, transient errors, answers in any order.
TEST_F(RingMergeTest, ARandomLifeAgainstTheDisk) {
  Rng rng(11);
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> open;  // token: block, blocks
  uint64_t next = 0, done = 0;
  for (uint64_t turn = 0; turn < 20'000; ++turn) {
    for (uint64_t run = rng.Below(6), block = rng.Below(900); run > 0 && next < 5000; --run) {
      const auto blocks = static_cast<uint32_t>(1 + rng.Below(3));
      if (!device_->Queue({IoOp::kRead, block * kAlign, buffer_.data() + block * kAlign,
                           blocks * kAlign, next})) {
        break;
      }
      open[next++] = {block, blocks};
      block += blocks;
    }
    device_->Submit();
    while (!script_.taken.empty() && !rng.Chance(1, 4)) {
      const size_t index = rng.Below(script_.taken.size());
      const RingOp op = script_.taken[index];
      int32_t result = static_cast<int32_t>(op.bytes);
      if (rng.Chance(1, 4)) result = static_cast<int32_t>(1 + rng.Below(op.bytes));
      if (rng.Chance(1, 8)) result = -EAGAIN;
      if (result > 0) Transfer(op, static_cast<uint64_t>(result));
      script_.Answer(index, result);
    }
    for (const auto& [token, error] : Poll()) {
      ASSERT_EQ(error, 0);
      const auto [block, blocks] = open.at(token);
      ASSERT_EQ(std::memcmp(buffer_.data() + block * kAlign, disk_.data() + block * kAlign,
                            blocks * kAlign),
                0);
      open.erase(token);
      ++done;
    }
    if (done == 5000) break;
  }
  EXPECT_EQ(done, 5000u);
  EXPECT_EQ(device_->in_flight(), 0u);
}

TEST_F(RingMergeTest, LeavingWaitsForOneOperationOnce) {
  Queue(0, 0);
  Queue(1, 1);
  device_->Submit();
  device_.reset();
  EXPECT_EQ(script_.waits, 1);
}

}  // namespace
}  // namespace crumb
