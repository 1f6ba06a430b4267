// StripeDevice over memory: where each byte goes, one answer for all pieces, the first error, full
// members, syncs for everybody. One thread.
#include "storage/device/stripe_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/fault_device.h"
#include "storage/device/mem_device.h"

namespace crumb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr uint32_t kUnit = 16 * 4096;
constexpr uint64_t kBase = 1 << 20;
constexpr uint32_t kBlock = 4096;

// A stripe of mem devices, each behind a fault plan; everything that members are asked is noted.
class StripeDeviceTest : public ::testing::Test {
 protected:
  struct Asked {
    size_t member;
    IoRequest request;
  };

  void Make(const std::vector<uint64_t>& bytes, uint32_t depth = 64) {
    std::vector<std::unique_ptr<BlockDevice>> members;
    for (size_t i = 0; i < bytes.size(); ++i) {
      mems_.push_back(std::make_unique<MemDevice>(MemDeviceOptions{bytes[i], kBlock, 8, false}));
      auto member = std::make_unique<FaultDevice>(
          mems_.back().get(), [this, i](const IoRequest& request, uint64_t) {
            asked_.push_back({i, request});
            return plans_.contains(i) ? plans_[i](request) : Fault{};
          });
      members.push_back(std::move(member));
    }
    stripe_ = std::make_unique<StripeDevice>(
        StripeOptions{.unit_bytes = kUnit, .base = kBase, .depth = depth}, std::move(members));
  }
  std::map<uint64_t, int> Turn(size_t room = 64) {
    stripe_->Submit();
    std::vector<IoCompletion> some(room);
    const size_t count = stripe_->Poll(absl::MakeSpan(some));
    std::map<uint64_t, int> out;
    for (size_t i = 0; i < count; ++i) out[some[i].token] = some[i].error;
    return out;
  }
  int Do(const IoRequest& request) {
    EXPECT_TRUE(stripe_->Queue(request));
    for (int turn = 0; turn < 1000; ++turn) {
      const std::map<uint64_t, int> done = Turn();
      if (!done.empty()) return done.at(request.token);
    }
    ADD_FAILURE() << "never completed";
    return -1;
  }

  std::map<size_t, std::function<Fault(const IoRequest&)>> plans_;
  std::vector<Asked> asked_;
  std::vector<std::unique_ptr<MemDevice>> mems_;
  std::unique_ptr<StripeDevice> stripe_;
  AlignedBuffer buffer_{8 << 20}, other_{8 << 20};
};

TEST_F(StripeDeviceTest, TheSmallestMemberCountsInWholeUnits) {
  Make({4 << 20, 3 << 20, 5 << 20});
  EXPECT_EQ(stripe_->size_bytes(), 3u * (2 << 20));
  Make({kBase + kUnit + kBlock, kBase + 3 * kUnit});
  EXPECT_EQ(stripe_->size_bytes(), 2u * kUnit);
  EXPECT_EQ(stripe_->alignment(), kBlock);
}

TEST_F(StripeDeviceTest, UnitsGoRoundTheMembersBehindTheirLabels) {
  Make({4 << 20, 4 << 20, 4 << 20});
  for (uint64_t i = 0; i < buffer_.size(); ++i) buffer_.data()[i] = static_cast<uint8_t>(i / kUnit);
  const auto bytes = static_cast<uint32_t>(7 * kUnit);
  ASSERT_EQ(Do({IoOp::kWrite, 0, buffer_.data(), bytes, 1}), 0);
  for (uint64_t unit = 0; unit < 7; ++unit) {
    const Bytes image = mems_[unit % 3]->image();
    EXPECT_EQ(image[kBase + unit / 3 * kUnit], unit);
    EXPECT_EQ(image[kBase + unit / 3 * kUnit + kUnit - 1], unit);
  }
  for (const auto& mem : mems_) {  // what lies in front belongs to the label
    EXPECT_EQ(std::count(mem->image().begin(), mem->image().begin() + kBase, 0),
              static_cast<ptrdiff_t>(kBase));
  }
}

TEST_F(StripeDeviceTest, ARequestThatCrossesAUnitIsSplitAndAnsweredOnce) {
  Make({4 << 20, 4 << 20});
  asked_.clear();
  ASSERT_EQ(Do({IoOp::kWriteDurable, kUnit - kBlock, buffer_.data(), 2 * kBlock, 9}), 0);
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0].member, 0u);
  EXPECT_EQ(asked_[0].request.op, IoOp::kWriteDurable);
  EXPECT_EQ(asked_[0].request.offset, kBase + kUnit - kBlock);
  EXPECT_EQ(asked_[0].request.bytes, kBlock);
  EXPECT_EQ(asked_[1].member, 1u);
  EXPECT_EQ(asked_[1].request.op, IoOp::kWriteDurable);
  EXPECT_EQ(asked_[1].request.offset, kBase);
  EXPECT_EQ(asked_[1].request.data, buffer_.data() + kBlock);
  asked_.clear();
  ASSERT_EQ(Do({IoOp::kRead, kUnit, buffer_.data(), kUnit, 9}), 0);  // a whole unit: one piece
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(StripeDeviceTest, ASyncAsksEveryMember) {
  Make({4 << 20, 4 << 20, 4 << 20});
  asked_.clear();
  ASSERT_EQ(Do({.op = IoOp::kSync, .token = 3}), 0);
  ASSERT_EQ(asked_.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(asked_[i].member, i);
    EXPECT_EQ(asked_[i].request.op, IoOp::kSync);
  }
  plans_[1] = [](const IoRequest&) { return Fault{.error = EIO}; };
  EXPECT_EQ(Do({.op = IoOp::kSync, .token = 4}), EIO);
}

// The answer waits for the last piece: until then a member may write to the caller's memory.
TEST_F(StripeDeviceTest, TheFirstErrorIsTheAnswerAfterTheLastPiece) {
  Make({4 << 20, 4 << 20});
  plans_[0] = [](const IoRequest&) { return Fault{.error = ENOSPC}; };
  plans_[1] = [](const IoRequest&) { return Fault{.error = EIO, .delay_polls = 5}; };
  ASSERT_TRUE(stripe_->Queue({IoOp::kWrite, 0, buffer_.data(), 2 * kUnit, 7}));
  for (int turn = 0; turn < 4; ++turn) {
    EXPECT_TRUE(Turn().empty());
    EXPECT_EQ(stripe_->in_flight(), 1u);
  }
  std::map<uint64_t, int> done;
  for (int turn = 0; turn < 4 && done.empty(); ++turn) done = Turn();
  EXPECT_THAT(done, ElementsAre(Pair(7, ENOSPC)));
  EXPECT_EQ(stripe_->in_flight(), 0u);
}

TEST_F(StripeDeviceTest, ADeadMemberFailsWhatTouchesItAndNothingElse) {
  Make({4 << 20, 4 << 20});
  plans_[1] = [](const IoRequest&) { return Fault{.error = EIO}; };
  EXPECT_EQ(Do({IoOp::kRead, 0, buffer_.data(), kUnit, 1}), 0);
  EXPECT_EQ(Do({IoOp::kRead, kUnit, buffer_.data(), kBlock, 1}), EIO);
  EXPECT_EQ(Do({IoOp::kRead, 0, buffer_.data(), kUnit + kBlock, 1}), EIO);
  EXPECT_EQ(Do({IoOp::kWriteDurable, 2 * kUnit, buffer_.data(), kUnit, 1}), 0);
}

// 40 pieces for members that take 8 each: the rest waits, in order, and comes.
TEST_F(StripeDeviceTest, FullMembersMakePiecesWait) {
  Make({8 << 20, 8 << 20}, 4);
  for (size_t i = 0; i < buffer_.size(); ++i) buffer_.data()[i] = static_cast<uint8_t>(i >> 12);
  const auto bytes = static_cast<uint32_t>(40 * kUnit);
  ASSERT_TRUE(stripe_->Queue({IoOp::kWrite, 0, buffer_.data(), bytes, 1}));
  ASSERT_TRUE(stripe_->Queue({IoOp::kRead, 0, other_.data(), kBlock, 2}));
  ASSERT_TRUE(stripe_->Queue({.op = IoOp::kSync, .token = 3}));
  ASSERT_TRUE(stripe_->Queue({IoOp::kRead, 0, other_.data(), kBlock, 4}));
  EXPECT_FALSE(stripe_->Queue({IoOp::kRead, 0, other_.data(), kBlock, 5}));
  std::map<uint64_t, int> done;
  for (int turn = 0; turn < 100 && done.size() < 4; ++turn) done.merge(Turn());
  EXPECT_THAT(done, ElementsAre(Pair(1, 0), Pair(2, 0), Pair(3, 0), Pair(4, 0)));
  ASSERT_EQ(Do({IoOp::kRead, 0, other_.data(), bytes, 6}), 0);
  EXPECT_TRUE(std::equal(other_.data(), other_.data() + bytes, buffer_.data()));
}

TEST_F(StripeDeviceTest, AnErrorSparesThePiecesThatWait) {
  Make({8 << 20, 8 << 20}, 4);
  plans_[0] = [](const IoRequest&) { return Fault{.error = EIO}; };
  asked_.clear();
  EXPECT_EQ(Do({IoOp::kWrite, 0, buffer_.data(), static_cast<uint32_t>(100 * kUnit), 1}), EIO);
  EXPECT_LT(asked_.size(), 100u);
}

TEST_F(StripeDeviceTest, ImpossibleRequestsReachNoMember) {
  Make({4 << 20, 4 << 20});
  asked_.clear();
  EXPECT_EQ(Do({IoOp::kRead, stripe_->size_bytes(), buffer_.data(), kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kRead, stripe_->size_bytes() - kBlock, buffer_.data(), 2 * kBlock, 1}),
            EINVAL);
  EXPECT_EQ(Do({IoOp::kWrite, 1, buffer_.data(), kBlock, 1}), EINVAL);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(StripeDeviceTest, WhatWasNotTakenComesWithTheNextPoll) {
  Make({4 << 20, 4 << 20});
  for (uint64_t token = 0; token < 8; ++token) {
    ASSERT_TRUE(stripe_->Queue({IoOp::kRead, token * kUnit, buffer_.data(), kBlock, token}));
  }
  std::map<uint64_t, int> done;
  for (int turn = 0; turn < 4; ++turn) {
    const std::map<uint64_t, int> some = Turn(3);
    EXPECT_LE(some.size(), 3u);
    for (const auto& [token, error] : some) EXPECT_TRUE(done.emplace(token, error).second);
  }
  EXPECT_EQ(done.size(), 8u);
}

TEST_F(StripeDeviceTest, GrowsAndShrinksWithItsMembers) {
  Make({4 << 20, 4 << 20});
  const uint64_t before = stripe_->size_bytes();
  ASSERT_EQ(Do({IoOp::kWrite, before - kUnit, buffer_.data(), kUnit, 1}), 0);
  ASSERT_TRUE(stripe_->Resize(before + kBlock).ok());
  EXPECT_EQ(stripe_->size_bytes(), before + kBlock);
  for (const auto& mem : mems_) EXPECT_EQ(mem->size_bytes(), (4u << 20) + kUnit);
  EXPECT_EQ(Do({IoOp::kWrite, before, buffer_.data(), kBlock, 1}), 0);
  EXPECT_EQ(Do({IoOp::kWrite, before, buffer_.data(), 2 * kBlock, 1}), EINVAL);
  ASSERT_TRUE(stripe_->Resize(4 * kUnit).ok());
  for (const auto& mem : mems_) EXPECT_EQ(mem->size_bytes(), kBase + 2 * kUnit);
  EXPECT_EQ(Do({IoOp::kRead, 4 * kUnit, buffer_.data(), kBlock, 1}), EINVAL);
  EXPECT_EQ(stripe_->Resize(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stripe_->Resize(kBlock + 1).code(), absl::StatusCode::kInvalidArgument);
}

// Members that sleep on descriptors: the stripe's wakes for each of them, and for what is left.
class Sleeper final : public BlockDevice {
 public:
  explicit Sleeper(int fd) : fd_(fd) {}
  uint64_t size_bytes() const override { return 4 << 20; }
  uint32_t alignment() const override { return kBlock; }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override {
    slices_ = slices.size();
    return slices.size() > 1 ? absl::UnavailableError("memlock") : absl::OkStatus();
  }
  bool Queue(const IoRequest&) override { return false; }
  void Submit() override {}
  size_t Poll(absl::Span<IoCompletion>) override { return 0; }
  size_t in_flight() const override { return 0; }
  int wake_fd() const override { return fd_; }
  absl::Status Resize(uint64_t) override { return absl::FailedPreconditionError("fixed"); }
  size_t slices_ = 0;

 private:
  int fd_;
};

TEST(StripeResizeTest, AMemberThatCannotLeavesAllAsTheyWere) {
  std::vector<std::unique_ptr<BlockDevice>> members;
  members.push_back(std::make_unique<MemDevice>(MemDeviceOptions{4 << 20, kBlock, 8, false}));
  members.push_back(std::make_unique<Sleeper>(-1));
  BlockDevice* first = members[0].get();
  StripeDevice stripe({.unit_bytes = kUnit, .base = kBase, .depth = 4}, std::move(members));
  const uint64_t before = stripe.size_bytes();
  EXPECT_FALSE(stripe.Resize(2 * before).ok());
  EXPECT_FALSE(stripe.Resize(2 * kUnit).ok());
  EXPECT_EQ(stripe.size_bytes(), before);
  EXPECT_EQ(first->size_bytes(), 4u << 20);
}

TEST(StripeWakeTest, AnyMemberWakesTheWhole) {
  int ends[2][2];
  ASSERT_EQ(::pipe(ends[0]), 0);
  ASSERT_EQ(::pipe(ends[1]), 0);
  std::vector<std::unique_ptr<BlockDevice>> members;
  std::vector<Sleeper*> sleepers;
  for (const auto& pair : ends) {
    auto sleeper = std::make_unique<Sleeper>(pair[0]);
    sleepers.push_back(sleeper.get());
    members.push_back(std::move(sleeper));
  }
  StripeDevice stripe({.unit_bytes = kUnit, .base = kBase, .depth = 4}, std::move(members));
  const auto ready = [&stripe] {
    pollfd entry = {stripe.wake_fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0);
  };
  EXPECT_EQ(ready(), 0);
  char byte = 1;
  for (const auto& pair : ends) {
    ASSERT_EQ(::write(pair[1], &byte, 1), 1);
    EXPECT_EQ(ready(), 1);
    ASSERT_EQ(::read(pair[0], &byte, 1), 1);
    EXPECT_EQ(ready(), 0);
  }
  AlignedBuffer buffer(kBlock);
  ASSERT_TRUE(stripe.Queue({IoOp::kRead, 1, buffer.data(), kBlock, 1}));  // answered at once
  stripe.Submit();
  EXPECT_EQ(ready(), 1);
  std::array<IoCompletion, 1> done;
  EXPECT_EQ(stripe.Poll(absl::MakeSpan(done)), 1u);
  EXPECT_EQ(ready(), 0);
  EXPECT_TRUE(stripe.RegisterBuffers({buffer.span()}).ok());
  EXPECT_FALSE(stripe.RegisterBuffers({buffer.span(), buffer.span()}).ok());
  for (const Sleeper* sleeper : sleepers) EXPECT_EQ(sleeper->slices_, 2u);  // all were asked
  for (const auto& pair : ends) {
    ::close(pair[0]);
    ::close(pair[1]);
  }
}

TEST_F(StripeDeviceTest, ARandomLifeAgainstAModel) {
  Make({4 << 20, 5 << 20, 4 << 20}, 16);
  Rng rng(3);
  for (size_t i = 0; i < 3; ++i) {
    plans_[i] = [&rng](const IoRequest&) {
      return Fault{.delay_polls = static_cast<uint32_t>(rng.Below(4))};
    };
  }
  const uint64_t size = stripe_->size_bytes();
  std::vector<uint8_t> model(size);
  constexpr uint64_t kSlots = 16;
  const uint64_t slot_bytes = size / kSlots / kBlock * kBlock;
  std::vector<IoRequest> requests(kSlots);
  std::vector<bool> busy(kSlots);
  AlignedBuffer memory(kSlots * slot_bytes);
  for (uint64_t step = 0; step < 3000; ++step) {
    const uint64_t slot = rng.Below(kSlots);
    if (!busy[slot]) {
      const uint64_t blocks = 1 + rng.Below(slot_bytes / kBlock - 1);
      const uint64_t skip = rng.Below(slot_bytes / kBlock - blocks);
      IoRequest request{.op = static_cast<IoOp>(rng.Below(3)),
                        .offset = slot * slot_bytes + skip * kBlock,
                        .data = memory.data() + slot * slot_bytes,
                        .bytes = static_cast<uint32_t>(blocks * kBlock),
                        .token = slot};
      if (request.op != IoOp::kRead) {
        for (uint64_t at = 0; at < request.bytes; at += 512) {
          request.data[at] = static_cast<uint8_t>(rng.Next());
        }
      }
      busy[slot] = stripe_->Queue(request);
      requests[slot] = request;
    }
    for (const auto& [token, error] : Turn(1 + rng.Below(4))) {
      ASSERT_EQ(error, 0);
      const IoRequest& request = requests[token];
      uint8_t* expected = model.data() + request.offset;
      if (request.op == IoOp::kRead) {
        ASSERT_TRUE(std::equal(request.data, request.data + request.bytes, expected));
      } else {
        std::copy(request.data, request.data + request.bytes, expected);
      }
      busy[token] = false;
    }
  }
}

}  // namespace
}  // namespace crumb
