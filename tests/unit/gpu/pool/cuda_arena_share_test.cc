// Which arena other processes can map by CUDA IPC. Over a GPU alone: it is the driver that decides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device/cuda_share.h"
#include "gpu/pool/cuda_arena.h"
#include "gpu/pool/hbm_size.h"

namespace crumb {
namespace {

TEST(DeviceArenaShareTest, WhatCudaMallocGaveIsSharedByIpcAndVirtualMemoryIsNot) {
  const auto malloced = DeviceArena::Create({.bytes = 4 * kHbmStepBytes});
  ASSERT_TRUE(malloced.ok()) << malloced.status();
  const auto share =
      ShareGpuMemory(malloced->memory().data() + kHbmStepBytes, malloced->memory().size() / 2);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->offset, kHbmStepBytes);
  EXPECT_EQ(share->allocation_bytes, 4 * kHbmStepBytes);
  const auto mapped =
      DeviceArena::Create({.bytes = 4 * kHbmStepBytes, .kind = DeviceArenaKind::kVmm});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(ShareGpuMemory(mapped->memory().data(), mapped->memory().size()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace crumb
