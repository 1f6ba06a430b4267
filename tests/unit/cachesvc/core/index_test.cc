// Index, timers and slabs by themselves, each against a plain model.
#include "cachesvc/core/index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "cachesvc/base/rng.h"
#include "cachesvc/core/slab.h"
#include "cachesvc/core/timer_heap.h"

namespace crumb::core {
namespace {

BlockKey KeyOf(uint64_t prefix, uint64_t rest = 0) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &prefix, sizeof(prefix));
  std::memcpy(key.bytes.data() + 8, &rest, sizeof(rest));
  return key;
}

Index MakeIndex(uint32_t entries, Index::HashFunction hash = nullptr) {
  auto made = Index::Create(entries, hash);
  EXPECT_TRUE(made.ok()) << made.status();
  return std::move(made).value();
}

TEST(IndexTest, SizesOutOfRangeAreRefused) {
  EXPECT_FALSE(Index::Create(0, nullptr).ok());
  EXPECT_FALSE(Index::Create(~0u, nullptr).ok());
}

TEST(IndexTest, AFullIndexSaysSo) {
  Index index = MakeIndex(2);
  EXPECT_NE(index.Insert(KeyOf(1)), kNoId);
  const EntryId second = index.Insert(KeyOf(2));
  EXPECT_EQ(index.Insert(KeyOf(3)), kNoId);
  index.Erase(second);
  EXPECT_NE(index.Insert(KeyOf(3)), kNoId);
}

TEST(IndexTest, ALifeOfAnEntryIsToldFromTheNext) {
  Index index = MakeIndex(2);
  const EntryId id = index.Insert(KeyOf(1));
  const uint32_t generation = index.at(id).generation;
  EXPECT_TRUE(index.Alive(id, generation));
  index.Erase(id);
  EXPECT_FALSE(index.Alive(id, generation));
  EXPECT_EQ(index.Insert(KeyOf(1)), id);
  EXPECT_FALSE(index.Alive(id, generation));
}

// The hash is as bad as can be, and keys agree in their first eight bytes: nothing may mix them up.
TEST(IndexTest, AWeakHashCostsTimeAndNeverGivesAWrongPage) {
  constexpr uint64_t kKeys = 10'000;
  Index index = MakeIndex(kKeys, [](uint64_t prefix) { return prefix % 8; });
  for (uint64_t i = 0; i < kKeys; ++i) {
    const EntryId id = index.Insert(KeyOf(i / 2, i));
    ASSERT_NE(id, kNoId);
    index.at(id).token_start = static_cast<uint32_t>(i);
  }
  for (uint64_t i = 0; i < kKeys; ++i) {
    const EntryId id = index.Find(KeyOf(i / 2, i));
    ASSERT_NE(id, kNoId);
    ASSERT_EQ(index.at(id).token_start, i);
    ASSERT_EQ(index.Find(KeyOf(i / 2, i + 100'000)), kNoId);
  }
}

void RandomInsertsAndErases(uint64_t reserved) {
  Index index = MakeIndex(300, [](uint64_t prefix) { return prefix * 3; });
  index.Reserve(reserved);
  std::map<BlockKey, EntryId> model;
  Rng rng(5);
  for (int step = 0; step < 50'000; ++step) {
    const BlockKey key = KeyOf(rng.Below(100), rng.Below(4));
    const EntryId found = index.Find(key);
    const auto it = model.find(key);
    ASSERT_EQ(found == kNoId, it == model.end());
    if (it != model.end()) {
      ASSERT_EQ(found, it->second);
    }
    if (found == kNoId && rng.Chance(1, 2)) {
      const EntryId id = index.Insert(key);
      ASSERT_EQ(id == kNoId, model.size() == 300);
      if (id != kNoId) model[key] = id;
    } else if (found != kNoId && rng.Chance(1, 2)) {
      index.Erase(found);
      model.erase(it);
    }
    ASSERT_EQ(index.size(), model.size());
  }
}

TEST(IndexTest, RandomInsertsAndErasesAgreeWithAMap) {
  for (const uint64_t reserved : {0, 1, 77, 128, 299, 300, 100'000}) {
    RandomInsertsAndErases(reserved);
  }
}

TEST(IndexTest, BucketsAreMadeAtOnceOnlyWhileItIsEmptyAndNoMoreThanFit) {
  Index index = MakeIndex(300);
  index.Reserve(~uint64_t{0});
  EXPECT_EQ(index.bytes_used(), 600 * sizeof(uint32_t));
  const EntryId id = index.Insert(KeyOf(7));
  Index other = MakeIndex(300);
  ASSERT_EQ(other.Insert(KeyOf(7)), id);
  other.Reserve(300);
  EXPECT_EQ(other.Find(KeyOf(7)), id);
  EXPECT_EQ(index.Find(KeyOf(7)), id);
}

// What grows bucket by bucket finds everything at every size, and what was erased at none.
TEST(IndexTest, EverythingIsFoundWhileTheTableGrows) {
  constexpr uint32_t kKeys = 3000;
  Index index = MakeIndex(kKeys);
  Rng rng(9);
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < kKeys; ++i) {
    keys.push_back(KeyOf(rng.Next(), i));
    ASSERT_NE(index.Insert(keys.back()), kNoId);
    if (i % 97 != 0 && i + 1 != kKeys) continue;
    for (uint32_t at = 0; at <= i; ++at) {
      const EntryId id = index.Find(keys[at]);
      ASSERT_EQ(id, at);
      ASSERT_EQ(index.FindPrefix(keys[at].prefix64()), at);
    }
  }
  EXPECT_EQ(index.bytes_used(), kKeys * (sizeof(Entry) + 2 * sizeof(uint32_t)));
  for (uint32_t at = 0; at < kKeys; at += 2) index.Erase(at);
  for (uint32_t at = 0; at < kKeys; ++at) {
    ASSERT_EQ(index.Find(keys[at]), at % 2 == 0 ? kNoId : at);
  }
}

TEST(IndexTest, AHintAtTheEndOfItsRangeStaysThere) {
  uint16_t count = 0;
  CountHint(&count, -1);
  EXPECT_EQ(count, 0u);
  CountHint(&count, 1);
  CountHint(&count, 1);
  CountHint(&count, -1);
  EXPECT_EQ(count, 1u);
  for (int i = 0; i < 70'000; ++i) CountHint(&count, 1);
  EXPECT_EQ(count, 0xffffu);
  CountHint(&count, -1);
  EXPECT_EQ(count, 0xffffu) << "how many there are is not known any more";
}

TEST(IndexTest, APlaceOnDiskIsKeptWholeAndItsLengthIsThatOfThePage) {
  Index index = MakeIndex(4);
  const EntryId id = index.Insert(KeyOf(1));
  EXPECT_EQ(index.location(id), DiskLocation{});
  index.SetKind(id, index.TakeKind({.payload_bytes = 10'000}));
  const DiskLocation place{.segment = 0x7ffffffe,
                           .generation = 0xffffffff,
                           .offset_blocks = 0xffff,
                           .record_bytes = 12'288};
  index.SetLocation(id, place);
  EXPECT_EQ(index.location(id), place);
  EXPECT_TRUE(index.at(id).on_disk());
  index.SetLocation(id, {});
  EXPECT_FALSE(index.at(id).on_disk());
}

TEST(TimerHeapTest, RandomTimersComeInOrder) {
  TimerHeap heap(64);
  std::map<uint32_t, uint64_t> model;
  Rng rng(3);
  uint64_t now = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto id = static_cast<uint32_t>(rng.Below(64));
    if (rng.Chance(2, 3)) {
      model[id] = now + rng.Below(100);
      heap.Set(id, model[id]);
    } else if (rng.Chance(1, 2)) {
      heap.Remove(id);
      model.erase(id);
    }
    now += rng.Below(3);
    uint32_t due = 0;
    uint64_t last = 0;
    while (heap.PopDue(now, &due)) {
      ASSERT_TRUE(model.count(due));
      ASSERT_LE(model[due], now);
      ASSERT_GE(model[due], last);
      last = model[due];
      model.erase(due);
    }
    uint64_t next = UINT64_MAX;
    for (const auto& [timer, when] : model) next = std::min(next, when);
    ASSERT_EQ(heap.next_us(), next);
    ASSERT_EQ(heap.empty(), model.empty());
  }
}

struct Item {
  bool used = false;
  uint32_t generation = 0;
  uint32_t prev = 0, next = 0;
  List<Item>* list = nullptr;
};

TEST(SlabTest, ItemsAreReusedAndListsKeepTheirOrder) {
  Slab<Item> slab(3);
  const uint32_t a = slab.Take(), b = slab.Take(), c = slab.Take();
  EXPECT_EQ(slab.Take(), Slab<Item>::kNone);
  EXPECT_EQ((std::set<uint32_t>{a, b, c}).size(), 3u);
  List<Item> list;
  list.PushBack(slab, a);
  list.PushBack(slab, b);
  list.PushFront(slab, c);
  list.Remove(slab, a);
  EXPECT_EQ(list.size(), 2u);
  EXPECT_EQ(list.PopFront(slab), c);
  EXPECT_EQ(list.PopFront(slab), b);
  EXPECT_EQ(list.PopFront(slab), List<Item>::kNone);
  const uint32_t generation = slab[b].generation;
  slab.Give(b);
  EXPECT_FALSE(slab.Alive(b, generation));
  EXPECT_EQ(slab.Take(), b);
  EXPECT_FALSE(slab.Alive(b, generation));
}

}  // namespace
}  // namespace crumb::core
