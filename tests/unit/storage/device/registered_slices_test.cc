// Cutting memory for the kernel: whole huge pages by themselves, nothing lost, nothing twice.
#include "storage/device/registered_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/device/ring_device.h"

namespace crumb {
namespace {

constexpr uint64_t kHuge = kHugePageBytes, kLimit = kRegisteredSliceBytesMax;

// Only addresses are looked at.
MutableBytes Memory(uint64_t past, uint64_t bytes) {
  return {reinterpret_cast<uint8_t*>((uint64_t{7} << 40) + past), bytes};
}

std::vector<uint64_t> Sizes(uint64_t past, uint64_t bytes) {
  const MutableBytes memory = Memory(past, bytes);
  std::vector<uint64_t> sizes;
  const uint8_t* at = memory.data();
  for (const MutableBytes& slice : CutForRegistering(memory)) {
    EXPECT_EQ(slice.data(), at) << "they follow each other";
    at += slice.size();
    sizes.push_back(slice.size());
  }
  EXPECT_EQ(at, memory.data() + memory.size());
  return sizes;
}

TEST(RegisteredSlicesTest, WhatIsNoWholeHugePageIsASliceOfItsOwn) {
  using ::testing::ElementsAre;
  EXPECT_THAT(Sizes(0, 0), ElementsAre());
  EXPECT_THAT(Sizes(0, 4096), ElementsAre(4096));
  EXPECT_THAT(Sizes(4096, kHuge - 4096), ElementsAre(kHuge - 4096));
  EXPECT_THAT(Sizes(0, 3 * kHuge), ElementsAre(3 * kHuge));
  EXPECT_THAT(Sizes(0, 3 * kHuge + 4096), ElementsAre(3 * kHuge, 4096));
  EXPECT_THAT(Sizes(8192, 3 * kHuge), ElementsAre(kHuge - 8192, 2 * kHuge, 8192));
  EXPECT_THAT(Sizes(8192, 4096), ElementsAre(4096)) << "within one";
  EXPECT_THAT(Sizes(kHuge - 4096, 8192), ElementsAre(4096, 4096)) << "across two";
}

TEST(RegisteredSlicesTest, NoSliceIsAboveTheLimit) {
  using ::testing::ElementsAre;
  EXPECT_THAT(Sizes(0, 2 * kLimit), ElementsAre(kLimit, kLimit));
  EXPECT_THAT(Sizes(0, kLimit + kHuge + 4096), ElementsAre(kLimit, kHuge, 4096));
  EXPECT_THAT(Sizes(4096, 2 * kLimit), ElementsAre(kHuge - 4096, kLimit, kLimit - kHuge, 4096));
}

}  // namespace
}  // namespace crumb
