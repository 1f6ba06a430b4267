// PagePool: classes, pins, zombies, clearing of slab runs, and a random walk whose invariant is
// that each slot is in exactly one of {free, owned, zombie} and no two overlap.
#include "gpu/pool/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

constexpr uint64_t kKiB = 1024;

std::unique_ptr<PagePool> MakePool(uint64_t main_bytes, uint64_t slab_bytes,
                                   uint64_t staging_bytes) {
  auto pool = PagePool::Create({.bytes = main_bytes + staging_bytes,
                                .staging_bytes = staging_bytes,
                                .slab_bytes = slab_bytes});
  EXPECT_TRUE(pool.ok()) << pool.status();
  return std::move(pool).value();
}

TEST(PagePoolTest, BadSizesAreRefusedByName) {
  for (const PagePoolOptions& options :
       {PagePoolOptions{.bytes = 0}, PagePoolOptions{.bytes = kPoolBytesMin - 1},
        PagePoolOptions{.bytes = ~0ull},
        PagePoolOptions{.bytes = 1u << 20, .staging_bytes = 1u << 20},
        PagePoolOptions{.bytes = 1u << 20, .slab_bytes = 4097},
        PagePoolOptions{.bytes = 1u << 20, .slab_bytes = 1u << 30}}) {
    const auto pool = PagePool::Create(options);
    ASSERT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(pool.status().message().find("bytes"), std::string::npos);
  }
}

TEST(PagePoolTest, DefaultsGiveStagingAndSlabsForSmallAndLargePools) {
  for (const uint64_t bytes : {1ull << 20, 16ull << 20, 1ull << 30, 64ull << 30}) {
    const auto pool = PagePool::Create({.bytes = bytes});
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_GE((*pool)->staging_capacity_bytes(), bytes / 64);
    EXPECT_GE((*pool)->capacity_bytes(), bytes / 4);
    EXPECT_LE((*pool)->capacity_bytes() + (*pool)->staging_capacity_bytes(), bytes);
  }
}

TEST(PagePoolTest, ASlotIsAlignedAndLargeEnough) {
  const auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  const SlotId slot = pool->Allocate(5000);
  ASSERT_TRUE(slot.valid());
  EXPECT_EQ(pool->memory(slot).size(), 8192u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->memory(slot).data()) % 4096, 0u);
  EXPECT_EQ(pool->used_bytes(), 8192u);
  pool->Release(slot);
  EXPECT_EQ(pool->used_bytes(), 0u);
}

TEST(PagePoolTest, APinnedSlotOutlivesItsOwnerAndIsReusedAfterTheLastUnpin) {
  const auto pool = MakePool(1024 * kKiB, 1024 * kKiB, 64 * kKiB);
  const SlotId slot = pool->Allocate(1024 * kKiB);
  ASSERT_TRUE(slot.valid());
  pool->Pin(slot);
  pool->Pin(slot);
  pool->Release(slot);
  EXPECT_FALSE(pool->Allocate(4096).valid());
  pool->Unpin(slot);
  EXPECT_EQ(pool->pinned_slots(), 1u);
  EXPECT_FALSE(pool->Allocate(4096).valid());
  std::memset(pool->memory(slot).data(), 7, pool->memory(slot).size());
  pool->Unpin(slot);
  EXPECT_EQ(pool->pinned_slots(), 0u);
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_TRUE(pool->Allocate(4096).valid());
}

TEST(PagePoolTest, AnEmptySlabChangesClass) {
  const auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  std::vector<SlotId> slots;
  for (SlotId slot = pool->Allocate(4096); slot.valid(); slot = pool->Allocate(4096)) {
    slots.push_back(slot);
  }
  EXPECT_EQ(slots.size(), 256u);
  EXPECT_FALSE(pool->Allocate(8192).valid());
  for (size_t i = 16; i < 32; ++i) pool->Release(slots[i]);
  EXPECT_EQ(pool->free_slabs(), 1u);
  EXPECT_TRUE(pool->Allocate(8192).valid());
}

TEST(PagePoolTest, ABadlyFittingClassTakesARunOfSlabs) {
  const auto pool = MakePool(4096 * kKiB, 64 * kKiB, 64 * kKiB);
  size_t count = 0;
  while (pool->Allocate(52 * kKiB).valid()) ++count;
  EXPECT_GE(count * 52 * kKiB, 4096 * kKiB * 7 / 8);
}

TEST(PagePoolTest, ASlotLargerThanASlabTakesNeighbours) {
  const auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  EXPECT_TRUE(pool->CanEverFit(1024 * kKiB));
  EXPECT_FALSE(pool->CanEverFit(1024 * kKiB + 1));
  EXPECT_FALSE(pool->CanEverFit(~0ull));
  const SlotId slot = pool->Allocate(1000 * kKiB);
  ASSERT_TRUE(slot.valid());
  EXPECT_EQ(pool->memory(slot).size(), 1000 * kKiB);
}

TEST(PagePoolTest, ClearingMakesRoomForAnotherClassAndKeepsOthersOut) {
  const auto pool = MakePool(256 * kKiB, 64 * kKiB, 1024 * kKiB);
  std::vector<SlotId> small;
  for (int i = 0; i < 64; ++i) small.push_back(pool->Allocate(4096));
  EXPECT_FALSE(pool->Allocate(32 * kKiB).valid());
  ASSERT_TRUE(pool->BeginClear(32 * kKiB, small[20]));
  std::vector<SlotId> list(100);
  const size_t found = pool->NextToClear(absl::MakeSpan(list));
  ASSERT_EQ(found, 16u);
  EXPECT_EQ(list[0], small[16]);
  for (size_t i = 0; i < found; ++i) {
    pool->Release(list[i]);
    EXPECT_FALSE(pool->Allocate(4096).valid()) << "another class took what is being cleared";
  }
  EXPECT_EQ(pool->NextToClear(absl::MakeSpan(list)), 0u);
  EXPECT_EQ(pool->clearing_bytes(), 32 * kKiB);
  EXPECT_TRUE(pool->Allocate(32 * kKiB).valid());
  EXPECT_EQ(pool->clearing_bytes(), 0u);
  EXPECT_TRUE(pool->Allocate(32 * kKiB).valid());
}

TEST(PagePoolTest, ACancelledClearGivesFreeSlotsBack) {
  const auto pool = MakePool(128 * kKiB, 64 * kKiB, 1024 * kKiB);
  std::vector<SlotId> small;
  for (int i = 0; i < 32; ++i) small.push_back(pool->Allocate(4096));
  ASSERT_TRUE(pool->BeginClear(64 * kKiB, small[0]));
  pool->Release(small[3]);
  EXPECT_FALSE(pool->Allocate(4096).valid());
  pool->CancelClear();
  EXPECT_EQ(pool->Allocate(4096), small[3]);
}

TEST(PagePoolTest, ARunWithAPinIsNeverCleared) {
  const auto pool = MakePool(128 * kKiB, 64 * kKiB, 1024 * kKiB);
  std::vector<SlotId> small;
  for (int i = 0; i < 32; ++i) small.push_back(pool->Allocate(4096));
  pool->Pin(small[0]);
  ASSERT_TRUE(pool->BeginClear(64 * kKiB, small[0]));
  SlotId first[1];
  ASSERT_EQ(pool->NextToClear(absl::MakeSpan(first)), 1u);
  EXPECT_EQ(first[0], small[16]);
  pool->CancelClear();
  pool->Pin(small[31]);
  EXPECT_FALSE(pool->BeginClear(64 * kKiB, small[0]));
}

TEST(PagePoolTest, TheFreshShareIsCountedInSlabsWhateverIsFreeInThem) {
  const auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  const uint64_t limit = 3 * 64 * kKiB;
  EXPECT_EQ(pool->RunBytes(12 * kKiB), 64 * kKiB);
  EXPECT_EQ(pool->RunBytes(100 * kKiB), 128 * kKiB);
  EXPECT_EQ(pool->RunBytes(2048 * kKiB), 0u);
  EXPECT_FALSE(pool->FreshFits(12 * kKiB, 63 * kKiB));
  EXPECT_FALSE(pool->FreshFits(2048 * kKiB, 4096 * kKiB));
  // Two slabs of five slots, one slot each in use: what is free in them serves their class alone.
  std::vector<SlotId> slots;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pool->FreshFits(12 * kKiB, limit));
    slots.push_back(pool->Allocate(12 * kKiB, SlabKind::kFresh));
  }
  EXPECT_EQ(pool->fresh_slab_bytes(), 128 * kKiB);
  for (int i = 0; i < 10; ++i) {
    if (i % 5 != 0) pool->Release(slots[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(pool->fresh_used_bytes(), 24 * kKiB);
  EXPECT_TRUE(pool->FreshFits(12 * kKiB, 128 * kKiB));
  EXPECT_FALSE(pool->FreshFits(16 * kKiB, 128 * kKiB));
  EXPECT_TRUE(pool->FreshFits(16 * kKiB, limit));
  EXPECT_FALSE(pool->FreshFits(100 * kKiB, limit)) << "it takes two slabs";
  pool->Release(slots[0]);
  EXPECT_EQ(pool->fresh_slab_bytes(), 64 * kKiB);
  EXPECT_TRUE(pool->FreshFits(100 * kKiB, limit));
}

TEST(PagePoolTest, StagingIsApartFromStoredPagesAndItsHalvesFromEachOther) {
  const auto pool = MakePool(1024 * kKiB, 64 * kKiB, 128 * kKiB);
  while (pool->Allocate(64 * kKiB).valid()) {
  }
  const SlotId slot = pool->AllocateStaging(60 * kKiB, StageHalf::kIn);
  ASSERT_TRUE(slot.valid());
  EXPECT_EQ(pool->memory(slot).size(), 60 * kKiB);
  EXPECT_FALSE(pool->AllocateStaging(8 * kKiB, StageHalf::kIn).valid());
  const SlotId out = pool->AllocateStaging(64 * kKiB, StageHalf::kOut);
  ASSERT_TRUE(out.valid());
  EXPECT_GE(pool->memory(out).data(), pool->memory(slot).data() + 64 * kKiB);
  EXPECT_LE(pool->memory(out).data() + 64 * kKiB, pool->arena().data() + pool->arena().size());
  pool->Release(out);
  EXPECT_FALSE(pool->CanEverStage(64 * kKiB + 1));
  pool->Pin(slot);
  pool->Release(slot);
  EXPECT_EQ(pool->staging_used_bytes(), 60 * kKiB);
  pool->Unpin(slot);
  EXPECT_EQ(pool->staging_used_bytes(), 0u);
}

struct Owned {
  SlotId slot;
  uint64_t bytes = 0;
  uint32_t pins = 0;
  bool released = false;
};

uint64_t UsedBytes(const std::vector<Owned>& live) {
  uint64_t used = 0;
  for (const Owned& owned : live) used += owned.bytes;
  return used;
}

void CheckNoOverlap(const PagePool& pool, const std::vector<Owned>& live) {
  std::map<const uint8_t*, uint64_t> ranges;
  for (const Owned& owned : live) {
    const MutableBytes memory = pool.memory(owned.slot);
    ASSERT_EQ(memory.size(), owned.bytes);
    ASSERT_TRUE(ranges.emplace(memory.data(), memory.size()).second);
  }
  const uint8_t* end = nullptr;
  for (const auto& [begin, bytes] : ranges) {
    ASSERT_GE(begin, end);
    end = begin + bytes;
  }
}

TEST(PagePoolTest, RandomWalkKeepsEverySlotInOneState) {
  const auto pool = MakePool(2048 * kKiB, 64 * kKiB, 64 * kKiB);
  std::vector<Owned> live;
  Rng rng(7);
  const uint64_t sizes[] = {4096, 8192, 20480, 53248, 61440, 131072};
  for (int step = 0; step < 20000; ++step) {
    const uint64_t what = rng.Below(10);
    if (what < 4) {
      const uint64_t bytes = sizes[rng.Below(6)];
      if (const SlotId slot = pool->Allocate(bytes); slot.valid()) live.push_back({slot, bytes});
    } else if (what == 9 && rng.Chance(1, 4)) {
      SlotId some[8];
      const SlotId hint = live.empty() ? SlotId{} : live[rng.Below(live.size())].slot;
      if (pool->BeginClear(sizes[rng.Below(6)], hint)) pool->NextToClear(absl::MakeSpan(some));
      if (rng.Chance(1, 2)) pool->CancelClear();
    } else if (!live.empty()) {
      const size_t pick = rng.Below(live.size());
      Owned& owned = live[pick];
      if (what < 6) {
        pool->Pin(owned.slot);
        ++owned.pins;
      } else if (what < 8 && owned.pins > 0) {
        pool->Unpin(owned.slot);
        --owned.pins;
      } else if (!owned.released) {
        pool->Release(owned.slot);
        owned.released = true;
      }
      if (owned.released && owned.pins == 0) {
        owned = live.back();
        live.pop_back();
      }
    }
    ASSERT_EQ(pool->used_slots(), live.size());
    ASSERT_EQ(pool->used_bytes(), UsedBytes(live));
    ASSERT_LE(pool->used_bytes(), pool->capacity_bytes());
    if (step % 500 == 0) CheckNoOverlap(*pool, live);
  }
  for (const Owned& owned : live) {
    if (!owned.released) pool->Release(owned.slot);
    for (uint32_t i = 0; i < owned.pins; ++i) pool->Unpin(owned.slot);
  }
  pool->CancelClear();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_EQ(pool->pinned_slots(), 0u);
  EXPECT_EQ(pool->free_slabs(), 32u);
}

}  // namespace
}  // namespace crumb
