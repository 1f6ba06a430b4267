// RegisteredMemory: slices, copies cut at their borders, what is refused, and that the end undoes
// it. Over a GPU, and over the fake runtime.
#include "gpu/pool/cuda_registered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cachesvc/base/rng.h"
#include "gpu/device/cuda_queue.h"
#include "gpu/pool/arena.h"
#include "gpu/pool/cuda_arena.h"

namespace crumb {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kSecond = 4 * kMiB;  // of a second slice

Arena Map(uint64_t bytes) {
  auto arena = Arena::Map(bytes, HugePages::kNo);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return std::move(arena).value();
}

TEST(RegisteredMemoryTest, CopiesCutAtTheBorderOfSlicesArrive) {
  const Arena host = Map(kRegisterSliceBytes + kSecond);
  const auto registered = RegisteredMemory::Create(0, host.bytes());
  ASSERT_TRUE(registered.ok()) << registered.status();
  EXPECT_EQ(registered->slices(), 2u);
  EXPECT_EQ(registered->memory().data(), host.bytes().data());
  EXPECT_EQ(registered->memory().size(), host.bytes().size());

  const auto device = DeviceArena::Create({.bytes = 2 * kMiB});
  ASSERT_TRUE(device.ok()) << device.status();
  auto queue = CudaQueue::Create({.work_max = 8});
  ASSERT_TRUE(queue.ok()) << queue.status();
  // Two MiB across the border, to the device and to the end of the second slice.
  uint8_t* const from = host.bytes().data() + kRegisterSliceBytes - 700 * 1024;
  uint8_t* const to = host.bytes().data() + host.bytes().size() - 2 * kMiB;
  Rng rng(3);
  for (uint64_t i = 0; i < 2 * kMiB; ++i) from[i] = static_cast<uint8_t>(rng.Next());
  std::vector<StreamCopy> copies;
  for (uint64_t done = 0; done < 2 * kMiB;) {
    const uint64_t bytes = std::min(2 * kMiB - done, registered->SliceBytesFrom(from + done));
    ASSERT_GT(bytes, 0u);
    copies.push_back({device->memory().data() + done, from + done, bytes});
    done += bytes;
  }
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].bytes, 700u * 1024);
  ASSERT_EQ(registered->SliceBytesFrom(to), 2 * kMiB);
  const StreamCopy back = {to, device->memory().data(), 2 * kMiB};
  ASSERT_TRUE((*queue)->Submit({.copies = copies, .token = 1}));
  ASSERT_TRUE((*queue)->Submit({.copies = absl::MakeConstSpan(&back, 1), .token = 2}));
  StreamDone done[2];
  size_t found = 0;
  while (found < 2) found += (*queue)->Poll(absl::MakeSpan(done).subspan(found));
  EXPECT_TRUE(done[0].ok && done[1].ok) << (*queue)->health();
  EXPECT_EQ(std::memcmp(from, to, 2 * kMiB), 0);
}

TEST(RegisteredMemoryTest, AnAddressKnowsTheRestOfItsSlice) {
  const Arena host = Map(kRegisterSliceBytes + kSecond);
  const auto registered = RegisteredMemory::Create(0, host.bytes());
  ASSERT_TRUE(registered.ok()) << registered.status();
  const uint8_t* const base = host.bytes().data();
  EXPECT_EQ(registered->SliceBytesFrom(base), kRegisterSliceBytes);
  EXPECT_EQ(registered->SliceBytesFrom(base + kRegisterSliceBytes - 1), 1u);
  EXPECT_EQ(registered->SliceBytesFrom(base + kRegisterSliceBytes), kSecond);
  EXPECT_EQ(registered->SliceBytesFrom(base + kRegisterSliceBytes + kSecond - 1), 1u);
  EXPECT_EQ(registered->SliceBytesFrom(base + kRegisterSliceBytes + kSecond), 0u);
  EXPECT_EQ(registered->SliceBytesFrom(base - 1), 0u);
  EXPECT_EQ(RegisteredMemory().SliceBytesFrom(base), 0u);
}

TEST(RegisteredMemoryTest, BadRangesAreRefusedByName) {
  const Arena host = Map(kMiB);
  uint8_t* const base = host.bytes().data();
  const std::pair<MutableBytes, const char*> ranges[] = {{{}, "memory.data() is 0x0;"},
                                                         {{base + 512, 4096}, "memory.data() is "},
                                                         {{base, 0}, "memory.size() is 0;"},
                                                         {{base, 4097}, "memory.size() is 4097;"}};
  for (const auto& [range, named] : ranges) {
    const auto registered = RegisteredMemory::Create(0, range);
    ASSERT_EQ(registered.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(registered.status().message()), HasSubstr(named));
  }
  const auto registered = RegisteredMemory::Create(4096, host.bytes());
  ASSERT_EQ(registered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(registered.status().message()), HasSubstr("nvidia-smi -L"));
}

TEST(RegisteredMemoryTest, IsRegisteredOnceAndAgainAfterItsEnd) {
  const Arena host = Map(8 * kMiB);
  auto first = RegisteredMemory::Create(0, host.bytes());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = RegisteredMemory::Create(0, host.bytes());
  ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("registered already"));
  RegisteredMemory moved = std::move(first).value();
  EXPECT_EQ(moved.slices(), 1u);
  EXPECT_EQ(first->slices(), 0u);
  moved = RegisteredMemory();
  EXPECT_EQ(moved.slices(), 0u);
  const auto third = RegisteredMemory::Create(0, host.bytes());
  EXPECT_TRUE(third.ok()) << third.status();
}

}  // namespace
}  // namespace crumb
