// DeviceArena of both kinds: memory that copies reach, a page pool over it, what exports, and what
// is refused. Over a GPU, and over the fake runtime.
#include "gpu/pool/cuda_arena.h"

#include <cudaTypedefs.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cachesvc/base/rng.h"
#include "gpu/device/cuda_driver.cuh"
#include "gpu/device/cuda_queue.h"
#include "gpu/pool/hbm_size.h"
#include "gpu/pool/page_pool.h"

namespace crumb {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 32ull << 20;
constexpr CUmemAllocationHandleType kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

class DeviceArenaTest : public testing::TestWithParam<DeviceArenaKind> {
 protected:
  DeviceArenaTest() {
    auto queue = CudaQueue::Create({.work_max = 4});
    EXPECT_TRUE(queue.ok()) << queue.status();
    queue_ = std::move(queue).value();
  }

  static absl::StatusOr<DeviceArena> Create(uint64_t bytes, int device = 0) {
    return DeviceArena::Create({.device = device, .bytes = bytes, .kind = GetParam()});
  }
  static DeviceArena Make() {
    auto arena = Create(kBytes);
    EXPECT_TRUE(arena.ok()) << arena.status();
    return std::move(arena).value();
  }

  // Waits for it: a test's thread has nothing else to do.
  void Copy(void* to, const void* from, uint64_t bytes) {
    const StreamCopy copy = {to, from, bytes};
    ASSERT_TRUE(queue_->Submit({.copies = absl::MakeConstSpan(&copy, 1), .token = 1}));
    StreamDone done;
    while (queue_->Poll(absl::MakeSpan(&done, 1)) == 0) {
    }
    ASSERT_TRUE(done.ok) << queue_->health();
  }

  std::vector<uint8_t> Random(uint64_t bytes) {
    std::vector<uint8_t> data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(rng_.Next());
    return data;
  }

 private:
  std::unique_ptr<CudaQueue> queue_;
  Rng rng_{5};
};

INSTANTIATE_TEST_SUITE_P(Kind, DeviceArenaTest,
                         testing::Values(DeviceArenaKind::kMalloc, DeviceArenaKind::kVmm),
                         [](const auto& kind) {
                           return kind.param == DeviceArenaKind::kMalloc ? "Malloc" : "Vmm";
                         });

TEST_P(DeviceArenaTest, WhatIsCopiedInComesBack) {
  const DeviceArena arena = Make();
  EXPECT_EQ(arena.kind(), GetParam());
  EXPECT_EQ(arena.device(), 0);
  ASSERT_EQ(arena.memory().size(), kBytes);
  const std::vector<uint8_t> data = Random(kBytes);
  std::vector<uint8_t> back(kBytes);
  Copy(arena.memory().data(), data.data(), kBytes);
  Copy(back.data(), arena.memory().data(), kBytes);
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kBytes), 0);
}

TEST_P(DeviceArenaTest, APagePoolGivesItsSlots) {
  const DeviceArena arena = Make();
  const auto pool = PagePool::CreateOver(arena.memory(), {});
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->arena().data(), arena.memory().data());
  EXPECT_EQ((*pool)->capacity_bytes() + (*pool)->staging_capacity_bytes(), kBytes);
  std::vector<SlotId> slots;
  std::vector<std::vector<uint8_t>> pages;
  for (int i = 0; i < 3; ++i) {
    slots.push_back((*pool)->Allocate(50000));
    ASSERT_TRUE(slots.back().valid());
    pages.push_back(Random(50000));
    Copy((*pool)->memory(slots.back()).data(), pages.back().data(), 50000);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    std::vector<uint8_t> back(50000);
    Copy(back.data(), (*pool)->memory(slots[i]).data(), back.size());
    EXPECT_EQ(back, pages[i]);
  }
}

TEST_P(DeviceArenaTest, MovesWithItsOwner) {
  DeviceArena first = Make();
  const uint8_t* const data = first.memory().data();
  DeviceArena second = std::move(first);
  EXPECT_EQ(second.memory().data(), data);
  DeviceArena third;
  EXPECT_EQ(third.device(), -1);
  EXPECT_TRUE(third.memory().empty());
  EXPECT_FALSE(third.ExportFd().ok());
  third = std::move(second);
  EXPECT_EQ(third.memory().data(), data);
}

TEST_P(DeviceArenaTest, MoreThanThereIsSaysWhatIsFreeAndTheRemedy) {
  const auto arena = Create(4ull << 40);
  ASSERT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted) << arena.status();
  const std::string text(arena.status().message());
  EXPECT_THAT(text, HasSubstr("CUDA device 0: no 4398046511104 bytes"));
  EXPECT_THAT(text, HasSubstr(" MiB are free: lower pool.hbm_bytes, or the memory fraction"));
  Make();  // the refusal broke nothing
}

TEST_P(DeviceArenaTest, BadSizesAndDevicesAreNamed) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4096}, kHbmStepBytes + 4096, ~uint64_t{0}}) {
    const auto arena = Create(bytes);
    ASSERT_EQ(arena.status().code(), absl::StatusCode::kInvalidArgument) << arena.status();
    EXPECT_THAT(std::string(arena.status().message()), HasSubstr("bytes is"));
  }
  for (const int device : {-1, 4096}) {
    const auto arena = Create(kBytes, device);
    ASSERT_EQ(arena.status().code(), absl::StatusCode::kInvalidArgument) << arena.status();
    EXPECT_THAT(std::string(arena.status().message()), HasSubstr("nvidia-smi -L"));
  }
}

TEST(DeviceMemoryTest, WhatIsFreeSizesAPool) {
  const auto memory = AskDeviceMemory(0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  const auto size = SizeHbmPool({.total_bytes = memory->total_bytes,
                                 .free_bytes = memory->free_bytes,
                                 .wanted = {HbmWish::kBytes, kBytes}});
  ASSERT_TRUE(size.ok()) << size.status();
  const auto arena = DeviceArena::Create({.bytes = size->bytes});
  EXPECT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(AskDeviceMemory(4096).status().code(), absl::StatusCode::kInvalidArgument);
}

// Memory of a file descriptor, as another process would map it.
class Imported {
 public:
  Imported(int fd, uint64_t bytes) : bytes_(bytes) {
    const auto import = DriverCall<PFN_cuMemImportFromShareableHandle_v10020>(
        "cuMemImportFromShareableHandle", 10020);
    const auto reserve = DriverCall<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve", 10020);
    const auto map = DriverCall<PFN_cuMemMap_v10020>("cuMemMap", 10020);
    const auto access = DriverCall<PFN_cuMemSetAccess_v10020>("cuMemSetAccess", 10020);
    void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    EXPECT_EQ(import(&handle_, descriptor, kFd), CUDA_SUCCESS);
    EXPECT_EQ(reserve(&address_, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(map(address_, bytes, 0, handle_, 0), CUDA_SUCCESS);
    CUmemAccessDesc all = {};
    all.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    all.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(access(address_, bytes, &all, 1), CUDA_SUCCESS);
  }
  ~Imported() {
    DriverCall<PFN_cuMemUnmap_v10020>("cuMemUnmap", 10020)(address_, bytes_);
    DriverCall<PFN_cuMemAddressFree_v10020>("cuMemAddressFree", 10020)(address_, bytes_);
    DriverCall<PFN_cuMemRelease_v10020>("cuMemRelease", 10020)(handle_);
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(address_); }

 private:
  uint64_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
};

TEST_P(DeviceArenaTest, VirtualMemoryExportsAsAFileDescriptorAndOutlivesItsOwnerThere) {
  auto arena = std::make_unique<DeviceArena>(Make());
  const auto fd = arena->ExportFd();
  if (GetParam() == DeviceArenaKind::kMalloc) {
    ASSERT_EQ(fd.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(fd.status().message()), HasSubstr("CUDA IPC"));
    return;
  }
  ASSERT_TRUE(fd.ok()) << fd.status();
  const std::vector<uint8_t> data = Random(kBytes);
  Copy(arena->memory().data(), data.data(), kBytes);
  const Imported there(*fd, kBytes);
  EXPECT_EQ(close(*fd), 0);
  EXPECT_NE(there.data(), arena->memory().data());
  std::vector<uint8_t> back(kBytes);
  Copy(back.data(), there.data(), kBytes);
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kBytes), 0);
  arena.reset();
  std::fill(back.begin(), back.end(), uint8_t{0});
  Copy(back.data(), there.data(), kBytes);
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kBytes), 0);
}

}  // namespace
}  // namespace crumb
