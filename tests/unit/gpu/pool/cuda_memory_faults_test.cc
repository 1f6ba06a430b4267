// DeviceArena and RegisteredMemory where a call of CUDA fails half way: nothing stays behind, what
// was made ends in reverse order, and the error has a remedy. Over the fake runtime alone.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/pool/arena.h"
#include "gpu/pool/cuda_arena.h"
#include "gpu/pool/cuda_registered.h"
#include "gpu/pool/hbm_size.h"
#include "tests/conformance/gpu/cuda_fake_memory.h"
#include "tests/conformance/gpu/cuda_fake_runtime.h"

namespace crumb {
namespace {

using fake_cuda::Memory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CudaMemoryFaultsTest : public testing::Test {
 protected:
  CudaMemoryFaultsTest() { Memory() = {}; }
  ~CudaMemoryFaultsTest() override {
    EXPECT_EQ(Memory().live, 0) << "something did not end";
    Memory() = {};
  }

  static void Fail(const char* call, int skip, cudaError_t error) {
    Memory().fail_call = call;
    Memory().fail_skip = skip;
    Memory().fail_error = error;
  }
  static absl::StatusOr<DeviceArena> Vmm(uint64_t bytes = 4 * kHbmStepBytes) {
    return DeviceArena::Create({.bytes = bytes, .kind = DeviceArenaKind::kVmm});
  }
  static absl::Status Register(uint64_t bytes) {
    const auto host = Arena::Map(bytes, HugePages::kNo);
    EXPECT_TRUE(host.ok()) << host.status();
    return RegisteredMemory::Create(0, host->bytes()).status();
  }
};

TEST_F(CudaMemoryFaultsTest, VirtualMemoryEndsInReverse) {
  { EXPECT_TRUE(Vmm().ok()); }
  EXPECT_THAT(Memory().calls,
              ElementsAre("create", "reserve", "map", "access", "unmap", "free", "release"));
}

TEST_F(CudaMemoryFaultsTest, NoMemoryForVirtualMemory) {
  Memory().free_bytes = kHbmStepBytes;
  const auto arena = Vmm();
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()),
              HasSubstr("2 MiB of 143360 MiB are free: lower pool.hbm_bytes"));
  EXPECT_THAT(Memory().calls, IsEmpty());
}

TEST_F(CudaMemoryFaultsTest, NoAddressesForVirtualMemory) {
  Fail("reserve", 0, cudaErrorMemoryAllocation);
  const auto arena = Vmm();
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("no addresses for GPU memory"));
  EXPECT_THAT(Memory().calls, ElementsAre("create", "release"));
}

TEST_F(CudaMemoryFaultsTest, AMapThatIsRefused) {
  Fail("map", 0, cudaErrorInvalidValue);
  const auto arena = Vmm();
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("was not mapped"));
  EXPECT_THAT(Memory().calls, ElementsAre("create", "reserve", "free", "release"));
}

TEST_F(CudaMemoryFaultsTest, AccessThatIsRefused) {
  Fail("access", 0, cudaErrorUnknown);
  EXPECT_EQ(Vmm().status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Memory().calls, ElementsAre("create", "reserve", "map", "unmap", "free", "release"));
}

TEST_F(CudaMemoryFaultsTest, QuestionsThatFailMakeNothing) {
  for (const char* call : {"attribute", "granularity", "create"}) {
    Fail(call, 0, cudaErrorUnknown);
    EXPECT_EQ(Vmm().status().code(), absl::StatusCode::kInternal) << call;
    EXPECT_THAT(Memory().calls, IsEmpty());
  }
}

TEST_F(CudaMemoryFaultsTest, AnExportThatFailsLeavesTheArena) {
  const auto arena = Vmm();
  ASSERT_TRUE(arena.ok()) << arena.status();
  Fail("export", 0, cudaErrorUnknown);
  EXPECT_THAT(std::string(arena->ExportFd().status().message()), HasSubstr("was not exported"));
  arena->memory()[0] = 7;
}

TEST_F(CudaMemoryFaultsTest, DevicesAndDriversWithoutVirtualMemoryAreTold) {
  const auto expect_refused = [] {
    const auto arena = Vmm();
    EXPECT_EQ(arena.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(arena.status().message()), HasSubstr("by cudaMalloc instead"));
  };
  Memory().virtual_memory = false;
  expect_refused();
  Memory() = {};
  Memory().exports_fd = false;
  expect_refused();
  Memory() = {};
  for (const char* call : {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemUnmap"}) {
    fake_cuda::HideVmmCall(call);
    expect_refused();
    fake_cuda::ProvideVmmCall(call);
  }
  EXPECT_THAT(Memory().calls, IsEmpty());
  EXPECT_TRUE(Vmm().ok());
}

TEST_F(CudaMemoryFaultsTest, AnotherDeviceReachesAnArenaOnceItIsLet) {
  fake_cuda::SetDeviceCount(2);
  for (const DeviceArenaKind kind : {DeviceArenaKind::kMalloc, DeviceArenaKind::kVmm}) {
    const auto arena = DeviceArena::Create({.bytes = 4 * kHbmStepBytes, .kind = kind});
    ASSERT_TRUE(arena.ok()) << arena.status();
    Memory().reach.clear();
    EXPECT_TRUE(arena->LetReach(0).ok());
    EXPECT_THAT(Memory().reach, IsEmpty()) << "its own";
    EXPECT_TRUE(arena->LetReach(1).ok());
    EXPECT_THAT(Memory().reach, ElementsAre(1));
    EXPECT_EQ(arena->LetReach(2).code(), absl::StatusCode::kInvalidArgument);
    Memory().peer_access = 0;
    const absl::Status refused = arena->LetReach(1);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot reach memory of device 0"));
    Memory().peer_access = 1;
    Fail(kind == DeviceArenaKind::kVmm ? "access" : "peer", 0, cudaErrorUnknown);
    EXPECT_EQ(arena->LetReach(1).code(), absl::StatusCode::kInternal);
  }
  const auto arena = DeviceArena::Create({.bytes = kHbmStepBytes});
  Fail("peer", 0, cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_TRUE(arena->LetReach(1).ok());
  fake_cuda::SetDeviceCount(1);
}

TEST_F(CudaMemoryFaultsTest, ADeviceThatMapsLargerStepsNamesThem) {
  Memory().step_bytes = 8 * kHbmStepBytes;
  const auto arena = Vmm(12 * kHbmStepBytes);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("multiples of 16777216"));
  EXPECT_TRUE(Vmm(16 * kHbmStepBytes).ok());
}

TEST_F(CudaMemoryFaultsTest, NoMemoryByMallocEvenWhereWhatIsFreeIsNotKnown) {
  Fail("info", 0, cudaErrorUnknown);
  const auto arena = DeviceArena::Create({.bytes = 2ull << 40});
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("; lower pool.hbm_bytes, or"));
}

TEST_F(CudaMemoryFaultsTest, WhatIsFreeIsAskedForOrAnError) {
  Memory().free_bytes = 12345;
  const auto memory = AskDeviceMemory(0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->free_bytes, 12345u);
  EXPECT_EQ(memory->total_bytes, uint64_t{140} << 30);
  Fail("info", 0, cudaErrorDevicesUnavailable);
  EXPECT_EQ(AskDeviceMemory(0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudaMemoryFaultsTest, WithoutADeviceNothingIsTried) {
  fake_cuda::SetDeviceCountError(cudaErrorNoDevice);
  EXPECT_EQ(Vmm().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DeviceArena::Create({.bytes = kHbmStepBytes}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Register(4096).code(), absl::StatusCode::kFailedPrecondition);
  fake_cuda::SetDeviceCountError(0);
  EXPECT_THAT(Memory().calls, IsEmpty());
}

TEST_F(CudaMemoryFaultsTest, SlicesAreUnregisteredInReverse) {
  // The fake refuses to end any but the last, so that another order shows as a slice that lives on.
  EXPECT_TRUE(Register(2 * kRegisterSliceBytes + 4096).ok());
  EXPECT_THAT(Memory().calls, ElementsAre("register", "register", "register", "unregister",
                                          "unregister", "unregister"));
}

TEST_F(CudaMemoryFaultsTest, NoMemoryInTheSecondSliceUndoesTheFirst) {
  Fail("register", 1, cudaErrorMemoryAllocation);
  const absl::Status status = Register(2 * kRegisterSliceBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("slice 2 of 2 (1073741824 bytes) of the DRAM pool"));
  EXPECT_THAT(text, HasSubstr("ulimit -l"));
  EXPECT_THAT(text, HasSubstr("lower pool.dram_bytes"));
  EXPECT_THAT(Memory().calls, ElementsAre("register", "unregister"));
}

TEST_F(CudaMemoryFaultsTest, ARegistrationThatIsRefusedNamesTheRemedyToo) {
  Fail("register", 2, cudaErrorNotSupported);
  const absl::Status status = Register(2 * kRegisterSliceBytes + 4096);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("slice 3 of 3 (4096 bytes)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("LimitMEMLOCK"));
  EXPECT_THAT(Memory().calls, ElementsAre("register", "register", "unregister", "unregister"));
}

TEST_F(CudaMemoryFaultsTest, APlatformWithOtherAddressesForTheDeviceIsRefused) {
  Memory().same_addresses = false;
  const absl::Status status = Register(4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pool.hbm_bytes: 0"));
  EXPECT_THAT(Memory().calls, IsEmpty());
}

}  // namespace
}  // namespace crumb
