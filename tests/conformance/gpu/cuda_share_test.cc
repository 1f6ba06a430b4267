// Memory and events between "processes", over the fake runtime: what exports, what is refused with
// which remedy, that what the other side says is checked, and that nothing stays mapped.
#include "gpu/device/cuda_share.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/conformance/gpu/cuda_fake_ipc.h"

namespace crumb {
namespace {

using fake_cuda::Ipc;
using fake_cuda::MemoryKind;
using testing::HasSubstr;

constexpr uint64_t kBytes = 1 << 20;

class CudaShareTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(Ipc().open_mappings, 0);
    Ipc() = {};
  }
  void TearDown() override { EXPECT_EQ(Ipc().open_mappings, 0); }

  static GpuShare Share(const std::byte* address, uint64_t bytes) {
    auto share = ShareGpuMemory(address, bytes);
    EXPECT_TRUE(share.ok()) << share.status();
    return share.ok() ? *share : GpuShare{};
  }
};

TEST_F(CudaShareTest, ARangeIsSeenAtAnotherAddressWithItsBytes) {
  std::byte* memory = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  std::memset(memory, 7, kBytes);
  const GpuShare share = Share(memory + 4096, 8192);
  EXPECT_EQ(share.offset, 4096u);
  EXPECT_EQ(share.bytes, 8192u);
  EXPECT_EQ(share.allocation_bytes, kBytes);

  const auto travelled = ParseGpuShare(EncodeGpuShare(share));
  ASSERT_TRUE(travelled.ok()) << travelled.status();
  EXPECT_EQ(*travelled, share);
  GpuImports imports(4);
  const auto range = imports.Map(*travelled);
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_NE(range->data, memory + 4096);
  EXPECT_EQ(range->bytes, 8192u);
  EXPECT_EQ(range->device, 0);
  EXPECT_EQ(range->data[0], std::byte{7});
  range->data[8191] = std::byte{9};
  EXPECT_EQ(memory[4096 + 8191], std::byte{9});
  imports.Release(*range);
  EXPECT_EQ(imports.mapped(), 0u);
}

TEST_F(CudaShareTest, AnAllocationIsMappedOnceForAllItsRanges) {
  std::byte* memory = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  std::byte* other = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  GpuImports imports(2);
  std::vector<GpuImports::Range> ranges;
  for (int i = 0; i < 8; ++i) {
    auto range = imports.Map(Share(memory + 4096 * i, 4096));
    ASSERT_TRUE(range.ok()) << range.status();
    ranges.push_back(*range);
  }
  EXPECT_EQ(imports.mapped(), 1u);
  EXPECT_EQ(Ipc().open_mappings, 1);
  EXPECT_EQ(ranges[7].data - ranges[0].data, 7 * 4096);
  const auto second = imports.Map(Share(other, kBytes));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(Ipc().open_mappings, 2);
  while (!ranges.empty()) {
    EXPECT_EQ(Ipc().open_mappings, 2);
    imports.Release(ranges.back());
    ranges.pop_back();
  }
  EXPECT_EQ(Ipc().open_mappings, 1);
  imports.Release(*second);
}

TEST_F(CudaShareTest, WhatIsStillMappedIsClosedWithItsOwner) {
  GpuImports imports(1);
  ASSERT_TRUE(imports.Map(Share(fake_cuda::Allocate(kBytes, MemoryKind::kDevice), 1)).ok());
  EXPECT_EQ(Ipc().open_mappings, 1);
}

TEST_F(CudaShareTest, MemoryThatNoOtherProcessCanMapIsRefusedWithTheRemedy) {
  const auto status =
      ShareGpuMemory(fake_cuda::Allocate(kBytes, MemoryKind::kVirtual), kBytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("expandable_segments:False"));
  EXPECT_THAT(status.message(), HasSubstr("let the worker run the codec"));
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kManaged}) {
    const auto refused = ShareGpuMemory(fake_cuda::Allocate(kBytes, kind), kBytes).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  std::byte plain{};
  EXPECT_EQ(ShareGpuMemory(&plain, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ShareGpuMemory(nullptr, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaShareTest, RangesLieInOneAllocation) {
  std::byte* memory = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  EXPECT_TRUE(ShareGpuMemory(memory, kBytes).ok());
  EXPECT_TRUE(ShareGpuMemory(memory + kBytes - 1, 1).ok());
  for (const auto& [offset, bytes] :
       {std::pair<uint64_t, uint64_t>{0, kBytes + 1}, {kBytes - 1, 2}, {16, UINT64_MAX}, {0, 0}}) {
    EXPECT_EQ(ShareGpuMemory(memory + offset, bytes).status().code(),
              absl::StatusCode::kInvalidArgument)
        << offset << " " << bytes;
  }
}

TEST_F(CudaShareTest, WhatTheOtherSideSaysIsChecked) {
  std::byte* memory = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  GpuImports imports(4);
  GpuShare share = Share(memory, kBytes);
  share.allocation_bytes = share.bytes = 2 * kBytes;  // more than there is
  auto status = imports.Map(share).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("that has 1048576"));
  share.offset = UINT64_MAX, share.bytes = 2;
  EXPECT_FALSE(imports.Map(share).ok());
  EXPECT_EQ(Ipc().open_mappings, 0);

  share = Share(memory, kBytes);
  Ipc().range_cut = 1;
  EXPECT_EQ(imports.Map(share).status().code(), absl::StatusCode::kInvalidArgument);
  share.bytes = kBytes - 1;
  const auto range = imports.Map(share);
  ASSERT_TRUE(range.ok());
  // A wrong range of an allocation that is in use leaves that alone.
  EXPECT_FALSE(imports.Map(Share(memory, kBytes)).ok());
  EXPECT_EQ(imports.mapped(), 1u);
  imports.Release(*range);

  share.device[3] ^= 1;
  status = imports.Map(share).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(CudaShareTest, FailuresOfTheDriverLeaveNothingMapped) {
  std::byte* memory = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  const GpuShare share = Share(memory, kBytes);
  GpuImports imports(1);
  Ipc().open_error = cudaErrorInvalidResourceHandle;
  auto status = imports.Map(share).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("hostPID"));
  Ipc().open_error = 0;
  Ipc().range_error = 500;
  EXPECT_FALSE(imports.Map(share).ok());
  EXPECT_EQ(Ipc().open_mappings, 0);
  Ipc().range_error = 0;
  fake_cuda::EndAllocation(memory);
  EXPECT_EQ(imports.Map(share).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudaShareTest, AllocationsAreBounded) {
  GpuImports imports(2);
  std::byte* first = fake_cuda::Allocate(kBytes, MemoryKind::kDevice);
  const auto a = imports.Map(Share(first, 1));
  const auto b = imports.Map(Share(fake_cuda::Allocate(kBytes, MemoryKind::kDevice), 1));
  ASSERT_TRUE(a.ok() && b.ok());
  const GpuShare third = Share(fake_cuda::Allocate(kBytes, MemoryKind::kDevice), 1);
  EXPECT_EQ(imports.Map(third).status().code(), absl::StatusCode::kResourceExhausted);
  const auto again = imports.Map(Share(first + 64, 1));  // one that is mapped
  EXPECT_TRUE(again.ok());
  imports.Release(*a);
  EXPECT_EQ(imports.mapped(), 2u);
  imports.Release(*again);
  const auto now = imports.Map(third);
  EXPECT_TRUE(now.ok());
  imports.Release(*now);
  imports.Release(*b);
}

TEST_F(CudaShareTest, AStreamWaitsForWhatAnotherRecorded) {
  cudaStream_t worker = nullptr, daemon = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&worker, 0, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&daemon, 0, 0), cudaSuccess);
  const auto mine = GpuEvent::Create(0);
  ASSERT_TRUE(mine.ok()) << mine.status();
  const auto theirs = GpuEvent::Open(mine->handle(), 0);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_FALSE(GpuEvent::Open(GpuHandle{}, 0).ok());

  std::vector<int> source(1 << 16), copy(1 << 16);
  for (int turn = 1; turn <= 50; ++turn) {
    const std::vector<int> filled(source.size(), turn);
    ASSERT_EQ(
        cudaMemcpyAsync(source.data(), filled.data(), 4 * filled.size(), cudaMemcpyDefault, worker),
        cudaSuccess);
    ASSERT_TRUE(mine->Record(worker).ok());
    ASSERT_TRUE(theirs->Wait(daemon).ok());
    ASSERT_EQ(
        cudaMemcpyAsync(copy.data(), source.data(), 4 * copy.size(), cudaMemcpyDefault, daemon),
        cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(daemon), cudaSuccess);
    ASSERT_EQ(copy.front(), turn);
    ASSERT_EQ(copy.back(), turn);
  }
  EXPECT_EQ(cudaStreamDestroy(worker), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(daemon), cudaSuccess);
}

}  // namespace
}  // namespace crumb
