// MemDevice's volatile cache and FaultDevice's faults do what they say. One thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "storage/device/aligned_buffer.h"
#include "storage/device/fault_device.h"
#include "storage/device/mem_device.h"

namespace crumb {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kBlock = 4096;

class MemFaultDeviceTest : public ::testing::Test {
 protected:
  std::vector<std::pair<uint64_t, int>> Poll(BlockDevice* device) {
    std::array<IoCompletion, 16> completions;
    const size_t count = device->Poll(absl::MakeSpan(completions));
    std::vector<std::pair<uint64_t, int>> out;
    for (size_t i = 0; i < count; ++i) {
      out.emplace_back(completions[i].token, completions[i].error);
    }
    return out;
  }
  int Do(BlockDevice* device, IoRequest request) {
    EXPECT_TRUE(device->Queue(request));
    device->Submit();
    const auto done = Poll(device);
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? -1 : done[0].second;
  }
  void Write(BlockDevice* device, IoOp op, uint64_t block, uint8_t value) {
    std::memset(buffer_.data(), value, kBlock);
    ASSERT_EQ(Do(device, {op, block * kBlock, buffer_.data(), kBlock, 1}), 0);
  }
  void Sync(BlockDevice* device) { ASSERT_EQ(Do(device, {IoOp::kSync, 0, nullptr, 0, 1}), 0); }
  uint8_t At(uint64_t block, uint64_t byte = 0) const {
    return mem_.image()[block * kBlock + byte];
  }

  AlignedBuffer buffer_{4 * kBlock};
  MemDevice mem_{{16 * kBlock, kBlock, 8, true}};
};

bool Lose(const MemDevice::Write&, uint64_t) { return false; }
bool Keep(const MemDevice::Write&, uint64_t) { return true; }

TEST_F(MemFaultDeviceTest, NothingHappensBeforeSubmit) {
  ASSERT_TRUE(mem_.Queue({IoOp::kRead, 0, buffer_.data(), kBlock, 1}));
  EXPECT_TRUE(Poll(&mem_).empty());
  mem_.Submit();
  EXPECT_EQ(Poll(&mem_).size(), 1u);
}

TEST_F(MemFaultDeviceTest, ACrashTakesOnlyWhatIsNotStable) {
  Write(&mem_, IoOp::kWrite, 0, 1);
  Sync(&mem_);
  Write(&mem_, IoOp::kWrite, 1, 2);
  Write(&mem_, IoOp::kWriteDurable, 2, 3);
  EXPECT_EQ(mem_.unsynced_writes(), 1u);
  mem_.Crash(Lose);
  EXPECT_EQ(At(0), 1);
  EXPECT_EQ(At(1), 0);
  EXPECT_EQ(At(2), 3);
}

TEST_F(MemFaultDeviceTest, ACrashMayKeepOrTearBySectors) {
  Write(&mem_, IoOp::kWrite, 0, 1);
  mem_.Crash([](const MemDevice::Write&, uint64_t sector) { return sector < 3; });
  EXPECT_EQ(At(0, 3 * kSectorBytes - 1), 1);
  EXPECT_EQ(At(0, 3 * kSectorBytes), 0);
  Write(&mem_, IoOp::kWrite, 0, 2);
  mem_.Crash(Keep);
  EXPECT_EQ(At(0, kBlock - 1), 2);
}

TEST_F(MemFaultDeviceTest, WritesInFlightMaySurviveTooAndNeverComplete) {
  std::memset(buffer_.data(), 9, kBlock);
  ASSERT_TRUE(mem_.Queue({IoOp::kWriteDurable, 0, buffer_.data(), kBlock, 1}));
  mem_.Submit();
  mem_.Crash([](const MemDevice::Write& write, uint64_t) {
    EXPECT_TRUE(write.durable && !write.completed);
    return true;
  });
  EXPECT_EQ(At(0), 9);
  EXPECT_EQ(mem_.in_flight(), 0u);
  EXPECT_TRUE(Poll(&mem_).empty());
}

TEST_F(MemFaultDeviceTest, ASyncCoversOnlyWhatWasCompleteWhenItWasQueued) {
  std::memset(buffer_.data(), 5, kBlock);
  ASSERT_TRUE(mem_.Queue({IoOp::kWrite, 0, buffer_.data(), kBlock, 1}));
  ASSERT_TRUE(mem_.Queue({IoOp::kSync, 0, nullptr, 0, 2}));
  mem_.Submit();
  EXPECT_EQ(Poll(&mem_).size(), 2u);
  EXPECT_EQ(mem_.unsynced_writes(), 1u);
}

TEST_F(MemFaultDeviceTest, AnOldCachedWriteDoesNotReturnOverADurableOne) {
  Write(&mem_, IoOp::kWrite, 0, 1);
  Write(&mem_, IoOp::kWriteDurable, 0, 2);
  mem_.Crash(Keep);
  EXPECT_EQ(At(0), 2);
}

TEST_F(MemFaultDeviceTest, EachFaultDoesWhatItSays) {
  Fault fault;
  FaultDevice device(&mem_, [&fault](const IoRequest&, uint64_t) { return fault; });
  fault = {.error = ENOSPC};
  std::memset(buffer_.data(), 1, kBlock);
  EXPECT_EQ(Do(&device, {IoOp::kWrite, 0, buffer_.data(), kBlock, 1}), ENOSPC);
  EXPECT_EQ(At(0), 0);
  fault = {.lose_write = true};
  Write(&device, IoOp::kWrite, 0, 2);
  EXPECT_EQ(At(0), 0);
  fault = {.misdirect_bytes = 2 * kBlock};
  Write(&device, IoOp::kWrite, 0, 3);
  EXPECT_EQ(At(0), 0);
  EXPECT_EQ(At(2), 3);
  fault = {.torn_bytes = kBlock + 1};
  std::memset(buffer_.data(), 4, 2 * kBlock);
  EXPECT_EQ(Do(&device, {IoOp::kWrite, 4 * kBlock, buffer_.data(), 2 * kBlock, 1}), 0);
  EXPECT_EQ(At(4), 4);
  EXPECT_EQ(At(5), 0);
  fault = {.flip_bit = 9};
  EXPECT_EQ(Do(&device, {IoOp::kRead, 4 * kBlock, buffer_.data(), kBlock, 1}), 0);
  EXPECT_EQ(buffer_.data()[1], 4 ^ 2);
  fault = {};
  EXPECT_EQ(Do(&device, {IoOp::kRead, 4 * kBlock, buffer_.data(), kBlock, 1}), 0);
  EXPECT_EQ(buffer_.data()[1], 4);
  EXPECT_EQ(device.faults(), 5u);
}

TEST_F(MemFaultDeviceTest, DelaysChangeTheOrder) {
  FaultDevice device(&mem_, [](const IoRequest&, uint64_t index) {
    return Fault{.delay_polls = index == 0 ? 2u : 0u};
  });
  ASSERT_TRUE(device.Queue({IoOp::kRead, 0, buffer_.data(), kBlock, 1}));
  ASSERT_TRUE(device.Queue({IoOp::kRead, 0, buffer_.data(), kBlock, 2}));
  device.Submit();
  using Pair = std::pair<uint64_t, int>;
  EXPECT_THAT(Poll(&device), ElementsAre(Pair(2, 0)));
  EXPECT_EQ(device.in_flight(), 1u);
  EXPECT_TRUE(Poll(&device).empty());
  EXPECT_THAT(Poll(&device), ElementsAre(Pair(1, 0)));
  EXPECT_EQ(device.in_flight(), 0u);
}

TEST_F(MemFaultDeviceTest, AfterACrashNothingInFlightIsLeft) {
  FaultDevice device(&mem_, [](const IoRequest&, uint64_t) { return Fault{.delay_polls = 5}; });
  ASSERT_TRUE(device.Queue({IoOp::kRead, 0, buffer_.data(), kBlock, 1}));
  device.Submit();
  EXPECT_TRUE(Poll(&device).empty());
  mem_.Crash(Lose);
  device.Forget();
  EXPECT_EQ(device.in_flight(), 0u);
  EXPECT_TRUE(Poll(&device).empty());
}

}  // namespace
}  // namespace crumb
