// The contract of BlockDevice, over every implementation: io_uring and thread pool on a real file
// (O_DIRECT and page cache), memory, the fault decorator without faults, the simulator's disk, and
// stripes over files and over memory.
// One thread.
#include "storage/device/block_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/aligned_buffer.h"
#include "storage/device/fault_device.h"
#include "storage/device/file_device.h"
#include "storage/device/mem_device.h"
#include "storage/device/stripe_device.h"
#include "storage/device/stripe_set.h"
#include "tests/sim/sim_disk.h"

namespace crumb {
namespace {

constexpr uint64_t kBytes = 8 << 20;
constexpr uint32_t kDepth = 4;
constexpr uint32_t kBlock = 4096;
constexpr int kPatienceMs = 10'000;

// A device and whatever it stands on.
struct Fixture {
  std::string skip;
  std::vector<std::string> paths;
  std::unique_ptr<BlockDevice> inner, device;
  virtual ~Fixture() {
    device.reset();
    inner.reset();
    for (const std::string& path : paths) ::unlink(path.c_str());
  }
  std::string NewPath() {
    std::string pattern = "/tmp/crumb-device-XXXXXX";
    const int fd = ::mkstemp(pattern.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
    paths.push_back(pattern);
    return pattern;
  }
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Fixture>()> make;
};

std::unique_ptr<Fixture> MakeFile(FileDeviceOptions options) {
  auto fixture = std::make_unique<Fixture>();
  options.path = fixture->NewPath();
  options.bytes = kBytes;
  options.depth = kDepth;
  absl::StatusOr<FileDevice> opened = OpenFileDevice(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return fixture;
  if (options.allow_uring && !opened->uring) fixture->skip = opened->description;
  fixture->device = std::move(opened->device);
  return fixture;
}

constexpr size_t kMembers = 2;
constexpr uint32_t kUnit = 64 << 10;

std::unique_ptr<Fixture> MakeStripedFiles(FileDeviceOptions each) {
  auto fixture = std::make_unique<Fixture>();
  StripeSetOptions options;
  for (size_t i = 0; i < kMembers; ++i) options.paths.push_back(fixture->NewPath());
  options.bytes = kBytes + kMembers * kStripeLabelBytes;
  options.unit_bytes = kUnit;
  options.each = each;
  options.each.depth = kDepth;
  absl::StatusOr<FileDevice> opened = OpenStripeSet(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return fixture;
  if (each.allow_uring && !opened->uring) fixture->skip = opened->description;
  fixture->device = std::move(opened->device);
  return fixture;
}

std::unique_ptr<Fixture> MakeStripedMem() {
  auto fixture = std::make_unique<Fixture>();
  std::vector<std::unique_ptr<BlockDevice>> members;
  for (size_t i = 0; i < kMembers; ++i) {
    members.push_back(
        std::make_unique<MemDevice>(MemDeviceOptions{kBytes / kMembers, kBlock, kDepth, false}));
  }
  fixture->device = std::make_unique<StripeDevice>(
      StripeOptions{.unit_bytes = kUnit, .base = 0, .depth = kDepth}, std::move(members));
  return fixture;
}

std::unique_ptr<Fixture> MakeMem(bool track_unsynced) {
  auto fixture = std::make_unique<Fixture>();
  fixture->device =
      std::make_unique<MemDevice>(MemDeviceOptions{kBytes, kBlock, kDepth, track_unsynced});
  return fixture;
}

// The simulator's device without latency, as it is while a log opens.
struct SimFixture : Fixture {
  sim::SimContext context{1, sim::Echo::kQuiet};
  sim::SimDisk disk{kBytes};
  ~SimFixture() { device.reset(); }
};

std::unique_ptr<Fixture> MakeSim() {
  auto fixture = std::make_unique<SimFixture>();
  auto device = std::make_unique<sim::SimBlockDevice>(&fixture->context, &fixture->disk,
                                                      sim::SimDeviceOptions{.depth = kDepth});
  device->SetInstant(true);
  fixture->device = std::move(device);
  return fixture;
}

std::unique_ptr<Fixture> MakeDecorated() {
  std::unique_ptr<Fixture> fixture = MakeMem(false);
  fixture->inner = std::move(fixture->device);
  fixture->device = std::make_unique<FaultDevice>(fixture->inner.get(), nullptr);
  return fixture;
}

std::vector<Case> Cases() {
  return {
      {"Uring", [] { return MakeFile({}); }},
      {"UringPageCache", [] { return MakeFile({.allow_direct = false}); }},
      {"UringUnmerged", [] { return MakeFile({.merge_bytes_max = 0}); }},
      {"Pool", [] { return MakeFile({.allow_uring = false}); }},
      {"PoolPageCache", [] { return MakeFile({.allow_uring = false, .allow_direct = false}); }},
      {"Mem", [] { return MakeMem(false); }},
      {"MemTracked", [] { return MakeMem(true); }},
      {"FaultFree", [] { return MakeDecorated(); }},
      {"Sim", [] { return MakeSim(); }},
      {"StripedUring", [] { return MakeStripedFiles({}); }},
      {"StripedPool", [] { return MakeStripedFiles({.allow_uring = false}); }},
      {"StripedMem", [] { return MakeStripedMem(); }},
  };
}

class BlockDeviceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    fixture_ = GetParam().make();
    if (!fixture_->skip.empty()) GTEST_SKIP() << fixture_->skip;
    ASSERT_NE(fixture_->device, nullptr);
  }
  BlockDevice& device() { return *fixture_->device; }

  // One round of Submit, wait and Poll; adds to done_.
  void Turn() {
    device().Submit();
    if (device().wake_fd() >= 0 && device().in_flight() > 0) {
      pollfd entry = {device().wake_fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&entry, 1, kPatienceMs), 1) << "no completion woke us";
    }
    std::array<IoCompletion, 3> some;
    const size_t count = device().Poll(absl::MakeSpan(some));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(done_.count(some[i].token), 0u) << "reported twice";
      done_[some[i].token] = some[i].error;
    }
  }
  void Drain() {
    for (int i = 0; i < 10'000 && device().in_flight() > 0; ++i) {
      ASSERT_NO_FATAL_FAILURE(Turn());
    }
    ASSERT_EQ(device().in_flight(), 0u);
  }
  int Do(const IoRequest& request) {
    EXPECT_TRUE(device().Queue(request));
    Drain();
    const int error = done_.at(request.token);
    done_.erase(request.token);
    return error;
  }
  static void Fill(MutableBytes out, uint64_t seed) {
    Rng rng(seed);
    for (size_t i = 0; i + sizeof(uint64_t) <= out.size(); i += sizeof(uint64_t)) {
      const uint64_t word = rng.Next();
      std::memcpy(out.data() + i, &word, sizeof(word));
    }
  }

  std::unique_ptr<Fixture> fixture_;
  std::map<uint64_t, int> done_;
  AlignedBuffer write_{2 << 20}, read_{2 << 20};
};

TEST_P(BlockDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device().size_bytes(), kBytes);
  EXPECT_EQ(kBlock % device().alignment(), 0u);
  EXPECT_EQ(device().in_flight(), 0u);
}

TEST_P(BlockDeviceTest, WhatIsWrittenIsRead) {
  Fill(write_.span(), 1);
  for (IoOp op : {IoOp::kWrite, IoOp::kWriteDurable}) {
    for (uint32_t bytes : {kBlock, 3 * kBlock, 1u << 20, 2u << 20}) {
      Fill(write_.span().subspan(0, bytes), bytes + static_cast<uint32_t>(op));
      const uint64_t offset = kBytes - bytes;
      ASSERT_EQ(Do({op, offset, write_.data(), bytes, 1}), 0);
      ASSERT_EQ(Do({IoOp::kRead, offset, read_.data(), bytes, 2}), 0);
      ASSERT_TRUE(std::equal(read_.data(), read_.data() + bytes, write_.data()));
    }
  }
  EXPECT_EQ(Do({IoOp::kSync, 0, nullptr, 0, 3}), 0);
}

TEST_P(BlockDeviceTest, GrowsAndShrinksUnderItsOwner) {
  Fill(write_.span(), 5);
  ASSERT_EQ(Do({IoOp::kWriteDurable, 0, write_.data(), 2 << 20, 1}), 0);
  ASSERT_TRUE(device().Resize(2 * kBytes).ok());
  EXPECT_EQ(device().size_bytes(), 2 * kBytes);
  ASSERT_EQ(Do({IoOp::kRead, kBytes, read_.data(), 1 << 20, 2}), 0);
  EXPECT_EQ(std::count(read_.data(), read_.data() + (1 << 20), 0), 1 << 20);
  ASSERT_EQ(Do({IoOp::kWrite, 2 * kBytes - kBlock, write_.data(), kBlock, 3}), 0);
  ASSERT_TRUE(device().Resize(kBytes / 2).ok());
  EXPECT_EQ(device().size_bytes(), kBytes / 2);
  EXPECT_EQ(Do({IoOp::kRead, kBytes / 2, read_.data(), kBlock, 4}), EINVAL);
  ASSERT_EQ(Do({IoOp::kRead, 0, read_.data(), 2 << 20, 5}), 0);
  EXPECT_EQ(write_.span(), read_.span());
  ASSERT_TRUE(device().Resize(2 * kBytes).ok());  // what was cut does not come back
  ASSERT_EQ(Do({IoOp::kRead, 2 * kBytes - kBlock, read_.data(), kBlock, 6}), 0);
  EXPECT_EQ(std::count(read_.data(), read_.data() + kBlock, 0), kBlock);
}

TEST_P(BlockDeviceTest, RefusesSizesThatAreNone) {
  EXPECT_EQ(device().Resize(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device().Resize(kBytes + 512).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device().size_bytes(), kBytes);
}

TEST_P(BlockDeviceTest, NeverWrittenIsZero) {
  Fill(read_.span(), 3);
  ASSERT_EQ(Do({IoOp::kRead, 1 << 20, read_.data(), 1 << 20, 1}), 0);
  EXPECT_EQ(std::count(read_.data(), read_.data() + (1 << 20), 0), 1 << 20);
}

TEST_P(BlockDeviceTest, AFullQueueRefusesAndForgetsNothing) {
  uint64_t token = 0;
  while (token < 2000 && device().Queue({IoOp::kRead, 0, read_.data(), kBlock, token})) ++token;
  EXPECT_GE(token, kDepth);
  EXPECT_EQ(device().in_flight(), token);
  Drain();
  EXPECT_EQ(done_.size(), token);
  EXPECT_TRUE(device().Queue({IoOp::kRead, 0, read_.data(), kBlock, 5000}));
  Drain();
}

TEST_P(BlockDeviceTest, ImpossibleRequestsCompleteWithInvalid) {
  EXPECT_EQ(Do({IoOp::kRead, kBytes, read_.data(), kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kRead, kBytes - kBlock, read_.data(), 2 * kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kWrite, 0, write_.data(), 0, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kWrite, 1, write_.data(), kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kWrite, 0, write_.data() + 1, kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kWrite, ~uint64_t{0} - kBlock + 1, write_.data(), kBlock, 1}), EINVAL);
  EXPECT_EQ(Do({IoOp::kRead, 0, read_.data(), kBlock, 1}), 0);
}

// Small requests side by side in one Submit may go as one; each has its own answer and its bytes.
TEST_P(BlockDeviceTest, NeighboursInOneSubmitAreEachAnswered) {
  constexpr uint32_t kSizes[kDepth] = {kBlock, 3 * kBlock, 16 * kBlock, 2 * kBlock};
  const std::vector<MutableBytes> slices = {write_.span(), read_.span()};
  for (const bool registered : {false, true}) {
    if (registered && !device().RegisterBuffers(slices).ok()) continue;
    for (const IoOp op : {IoOp::kWrite, IoOp::kWriteDurable}) {
      Fill(write_.span(), 7 + static_cast<uint64_t>(op));
      for (const IoOp now : {op, IoOp::kRead}) {
        uint8_t* memory = now == IoOp::kRead ? read_.data() : write_.data();
        uint64_t at = 0;
        for (uint64_t i = 0; i < kDepth; at += kSizes[i++]) {
          ASSERT_TRUE(device().Queue({now, (1 << 20) + at, memory + at, kSizes[i], i}));
        }
        Drain();
        ASSERT_EQ(done_.size(), kDepth);
        for (const auto& [token, error] : done_) EXPECT_EQ(error, 0) << token;
        done_.clear();
      }
      ASSERT_TRUE(std::equal(read_.data(), read_.data() + 22 * kBlock, write_.data()));
    }
  }
}

TEST_P(BlockDeviceTest, RegisteredMemoryGivesTheSameBytes) {
  const std::vector<MutableBytes> slices = {write_.span(), read_.span()};
  const absl::Status status = device().RegisterBuffers(slices);
  if (status.code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << status;
  ASSERT_TRUE(status.ok()) << status;
  Fill(write_.span(), 4);
  ASSERT_EQ(Do({IoOp::kWriteDurable, 0, write_.data(), 2 << 20, 1}), 0);
  ASSERT_EQ(Do({IoOp::kRead, 0, read_.data(), 2 << 20, 2}), 0);
  EXPECT_EQ(write_.span(), read_.span());
  AlignedBuffer outside(kBlock);
  ASSERT_EQ(Do({IoOp::kRead, kBlock, outside.data(), kBlock, 3}), 0);
  EXPECT_TRUE(std::equal(outside.data(), outside.data() + kBlock, write_.data() + kBlock));
  EXPECT_TRUE(device().RegisterBuffers({}).ok());
}

TEST_P(BlockDeviceTest, RefusesSlicesBeyondAGibibyte) {
  const MutableBytes slice(write_.data(), (1ull << 30) + kBlock);
  EXPECT_EQ(device().RegisterBuffers({slice}).code(), absl::StatusCode::kInvalidArgument);
}

// A long mixed run against a model, with a queue that is always full.
TEST_P(BlockDeviceTest, MixedRunAgainstAModel) {
  constexpr uint64_t kSlotBytes = 16 * kBlock;
  constexpr uint64_t kSlots = 32;
  std::vector<uint8_t> model(kSlots * kSlotBytes);
  AlignedBuffer buffers(kSlots * kSlotBytes);
  std::vector<IoRequest> requests(kSlots);
  std::vector<bool> busy(kSlots);
  Rng rng(17);
  for (uint64_t step = 0; step < 1500; ++step) {
    const uint64_t slot = rng.Below(kSlots);
    if (!busy[slot]) {
      const auto blocks = static_cast<uint32_t>(1 + rng.Below(16));
      const MutableBytes memory = buffers.span().subspan(slot * kSlotBytes, blocks * kBlock);
      const auto op = static_cast<IoOp>(rng.Below(3));
      if (op != IoOp::kRead) Fill(memory, step);
      requests[slot] = {op, slot * kSlotBytes, memory.data(), blocks * kBlock, slot};
      busy[slot] = device().Queue(requests[slot]);
    }
    if (rng.Chance(1, 3) || device().in_flight() >= kDepth) {
      ASSERT_NO_FATAL_FAILURE(Turn());
    }
    for (const auto& [token, error] : done_) {
      ASSERT_EQ(error, 0);
      const IoRequest& request = requests[token];
      uint8_t* expected = model.data() + token * kSlotBytes;
      if (request.op == IoOp::kRead) {
        ASSERT_TRUE(std::equal(request.data, request.data + request.bytes, expected));
      } else {
        std::copy(request.data, request.data + request.bytes, expected);
      }
      busy[token] = false;
    }
    done_.clear();
  }
  Drain();
}

INSTANTIATE_TEST_SUITE_P(All, BlockDeviceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace crumb
