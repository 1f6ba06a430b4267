// What every StreamQueue does, whatever its device is. A test program includes this once and
// instantiates StreamQueueConformance with its targets.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_STREAM_QUEUE_SUITE_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_STREAM_QUEUE_SUITE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gpu/device/stream_queue.h"
#include "tests/unit/client/allocation_counter.h"

namespace crumb {

// A device to test on: its queues, its memory, and one kernel.
class StreamTarget {
 public:
  virtual ~StreamTarget() = default;
  virtual absl::StatusOr<std::unique_ptr<StreamQueue>> Make(uint32_t work_max) = 0;
  // Zeroed; lives as long as the target.
  virtual uint8_t* DeviceMemory(size_t bytes) = 0;
  virtual uint8_t* HostMemory(size_t bytes) = 0;
  // Puts "set `bytes` bytes to `value`" on the stream.
  virtual absl::Status Fill(StreamHandle stream, absl::Span<uint8_t> memory, uint8_t value) = 0;
};

struct StreamTargetCase {
  std::string name;
  std::function<std::unique_ptr<StreamTarget>()> make;
};

inline void PrintTo(const StreamTargetCase& target, std::ostream* out) { *out << target.name; }

// What a launch callback gets.
struct FillArg {
  StreamTarget* target = nullptr;
  absl::Span<uint8_t> memory;
  uint8_t value = 0;
};

inline absl::Status RunFill(void* arg, StreamHandle stream) noexcept {
  const auto* fill = static_cast<const FillArg*>(arg);
  return fill->target->Fill(stream, fill->memory, fill->value);
}

inline absl::Status RefuseLaunch(void*, StreamHandle) noexcept {
  return absl::InvalidArgumentError("refused by the test");
}

// Bounded by the test's time limit: a GPU is polled, there is nothing to sleep on.
inline std::vector<StreamDone> Collect(StreamQueue& queue, size_t count) {
  std::vector<StreamDone> all;
  while (all.size() < count) {
    StreamDone some[3];
    const size_t found = queue.Poll(absl::MakeSpan(some));
    all.insert(all.end(), some, some + found);
  }
  return all;
}

class StreamQueueConformance : public ::testing::TestWithParam<StreamTargetCase> {
 protected:
  void SetUp() override { target_ = GetParam().make(); }

  std::unique_ptr<StreamQueue> Make(uint32_t work_max) {
    auto queue = target_->Make(work_max);
    EXPECT_TRUE(queue.ok()) << queue.status();
    return queue.ok() ? *std::move(queue) : nullptr;
  }

  std::unique_ptr<StreamTarget> target_;
};

TEST_P(StreamQueueConformance, CopiesGoThereAndBackInAsManyPiecesAsAsked) {
  const auto queue = Make(8);
  ASSERT_NE(queue, nullptr);
  constexpr size_t kPieces = 1000, kBytes = 96;  // odd sizes and starts below
  uint8_t* const from = target_->HostMemory(kPieces * kBytes);
  uint8_t* const device = target_->DeviceMemory(kPieces * kBytes);
  uint8_t* const other = target_->DeviceMemory(kPieces * kBytes);
  uint8_t* const back = target_->HostMemory(kPieces * kBytes);
  for (size_t i = 0; i < kPieces * kBytes; ++i) from[i] = static_cast<uint8_t>(i * 131 >> 3);
  std::vector<StreamCopy> up, across, down;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t at = i * kBytes + i % 7;
    const size_t bytes = i % 89;  // none of some
    up.push_back({device + at, from + at, bytes});
    across.push_back({other + at, device + at, bytes});
    down.push_back({back + at, other + at, bytes});
  }
  ASSERT_TRUE(queue->Submit({.copies = up, .token = 1}));
  ASSERT_TRUE(queue->Submit({.copies = across, .token = 2}));
  ASSERT_TRUE(queue->Submit({.copies = down, .token = 3}));
  EXPECT_EQ(queue->in_flight(), 3u);
  for (const StreamDone& done : Collect(*queue, 3)) EXPECT_TRUE(done.ok) << done.token;
  std::vector<uint8_t> want(kPieces * kBytes, 0);
  for (size_t i = 0; i < kPieces; ++i) {
    std::memcpy(&want[i * kBytes + i % 7], from + i * kBytes + i % 7, i % 89);
  }
  EXPECT_EQ(std::memcmp(back, want.data(), want.size()), 0);
  EXPECT_TRUE(queue->health().ok()) << queue->health();
}

TEST_P(StreamQueueConformance, TokensComeBackOnceAndInOrder) {
  const auto queue = Make(64);
  ASSERT_NE(queue, nullptr);
  uint8_t* const memory = target_->DeviceMemory(1 << 20);
  uint64_t next = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<FillArg> args(64);
    for (size_t i = 0; i < args.size(); ++i) {
      // Long and short work in turn: a short one must not overtake.
      args[i] = {target_.get(), {memory, i % 2 == 0 ? size_t{1} << 20 : 1}, 7};
      ASSERT_TRUE(queue->Submit({.launch = RunFill, .arg = &args[i], .token = 100 + next + i}));
    }
    for (const StreamDone& done : Collect(*queue, args.size())) {
      EXPECT_EQ(done.token, 100 + next++);
      EXPECT_TRUE(done.ok);
    }
  }
  StreamDone none[1];
  EXPECT_EQ(queue->Poll(absl::MakeSpan(none)), 0u);
  EXPECT_EQ(queue->in_flight(), 0u);
}

TEST_P(StreamQueueConformance, AFullQueueRefusesUntilItIsPolled) {
  for (const uint32_t work_max : {1u, 3u, 5u}) {
    const auto queue = Make(work_max);
    ASSERT_NE(queue, nullptr);
    for (uint64_t round = 0; round < 50; ++round) {
      for (uint64_t i = 0; i < work_max; ++i) ASSERT_TRUE(queue->Submit({.token = i}));
      EXPECT_FALSE(queue->Submit({.token = 99}));
      EXPECT_EQ(queue->in_flight(), work_max);
      EXPECT_EQ(Collect(*queue, 1)[0].token, 0u);
      // Collect takes up to three at a time; fill up what it freed.
      while (queue->in_flight() > 0) Collect(*queue, 1);
    }
    EXPECT_TRUE(queue->health().ok());
  }
}

TEST_P(StreamQueueConformance, PollGivesNoMoreThanAskedFor) {
  const auto queue = Make(4);
  ASSERT_NE(queue, nullptr);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(queue->Submit({.token = i}));
  EXPECT_EQ(queue->Poll({}), 0u);
  for (uint64_t i = 0; i < 4; ++i) {
    StreamDone one[1];
    while (queue->Poll(absl::MakeSpan(one)) == 0) {
    }
    EXPECT_EQ(one[0].token, i);
    EXPECT_EQ(queue->in_flight(), 3 - i);
  }
}

TEST_P(StreamQueueConformance, WorkSeesWhatStoodBeforeItOnTheStream) {
  const auto queue = Make(256);
  ASSERT_NE(queue, nullptr);
  constexpr size_t kBytes = 1 << 18, kSteps = 64;
  uint8_t* const device = target_->DeviceMemory(kBytes);
  uint8_t* const host = target_->HostMemory(kBytes * kSteps);
  uint8_t* const threes = target_->HostMemory(kBytes);
  std::memset(threes, 3, kBytes);
  std::vector<FillArg> args(kSteps);
  for (size_t i = 0; i < kSteps; ++i) {
    // Copies come before the launch of the same work, so the fill wins in its half.
    const StreamCopy in{device, threes, kBytes};
    args[i] = {target_.get(), {device, kBytes / 2}, static_cast<uint8_t>(10 + i)};
    ASSERT_TRUE(
        queue->Submit({.copies = {&in, 1}, .launch = RunFill, .arg = &args[i], .token = 2 * i}));
    const StreamCopy out{host + i * kBytes, device, kBytes};
    ASSERT_TRUE(queue->Submit({.copies = {&out, 1}, .token = 2 * i + 1}));
  }
  Collect(*queue, 2 * kSteps);
  for (size_t i = 0; i < kSteps; ++i) {
    const uint8_t* const image = host + i * kBytes;
    EXPECT_EQ(image[0], 10 + i);
    EXPECT_EQ(std::memcmp(image, image + 1, kBytes / 2 - 1), 0);
    EXPECT_EQ(std::memcmp(image + kBytes / 2, threes, kBytes / 2), 0);
  }
}

TEST_P(StreamQueueConformance, ALaunchThatFailsSpoilsItsOwnWorkOnly) {
  const auto queue = Make(8);
  ASSERT_NE(queue, nullptr);
  uint8_t* const device = target_->DeviceMemory(64);
  uint8_t* const host = target_->HostMemory(64);
  FillArg fill{target_.get(), {device, 64}, 42};
  ASSERT_TRUE(queue->Submit({.launch = RunFill, .arg = &fill, .token = 1}));
  ASSERT_TRUE(queue->Submit({.launch = RefuseLaunch, .token = 2}));
  const StreamCopy out{host, device, 64};
  ASSERT_TRUE(queue->Submit({.copies = {&out, 1}, .token = 3}));
  const std::vector<StreamDone> done = Collect(*queue, 3);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(done[i].token, i + 1);
    EXPECT_EQ(done[i].ok, i != 1);
  }
  EXPECT_EQ(host[63], 42);
  EXPECT_TRUE(queue->health().ok()) << queue->health();
}

TEST_P(StreamQueueConformance, TheDestructorWaitsForWhatIsInFlight) {
  constexpr size_t kBytes = 8 << 20;
  uint8_t* const device = target_->DeviceMemory(kBytes);
  uint8_t* const host = target_->HostMemory(kBytes);
  auto queue = Make(4);
  ASSERT_NE(queue, nullptr);
  FillArg fill{target_.get(), {device, kBytes}, 9};
  ASSERT_TRUE(queue->Submit({.launch = RunFill, .arg = &fill, .token = 1}));
  const StreamCopy out{host, device, kBytes};
  ASSERT_TRUE(queue->Submit({.copies = {&out, 1}, .token = 2}));
  queue.reset();
  EXPECT_EQ(host[kBytes - 1], 9);
}

TEST_P(StreamQueueConformance, SubmitAndPollAllocateNothing) {
  const auto queue = Make(16);
  ASSERT_NE(queue, nullptr);
  uint8_t* const device = target_->DeviceMemory(4096);
  uint8_t* const host = target_->HostMemory(4096);
  FillArg fill{target_.get(), {device, 4096}, 9};
  const StreamCopy copies[2] = {{host, device, 64}, {host + 2048, device + 2048, 64}};
  const uint64_t before = testing::Allocations();
  size_t back = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const StreamWork work{.copies = copies, .launch = RunFill, .arg = &fill, .token = i};
    StreamDone some[4];
    while (!queue->Submit(work)) back += queue->Poll(absl::MakeSpan(some));
  }
  StreamDone some[4];
  while (back < 200) back += queue->Poll(absl::MakeSpan(some));
  EXPECT_EQ(testing::Allocations(), before);
}

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_STREAM_QUEUE_SUITE_H_
