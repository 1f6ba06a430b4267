// Memory that is too small: who goes, who stays, who is refused.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

constexpr uint64_t kSlab = 64 << 10;
constexpr uint64_t kLossyPages = kSlab / 4096;  // per slab: a lossy page takes one 4 KiB slot

// One slab of main memory.
RigOptions Tight(uint64_t nvme_bytes = 0) {
  RigOptions options;
  options.main_bytes = kSlab;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = nvme_bytes;
  return options;
}

BlockResult PinPage(Rig& rig, uint64_t key, uint64_t ttl_us) {
  return rig.engine->Pin({.layout_handle = kLayout,
                          .session = rig.worker().session,
                          .digests = {DigestNumber(key)},
                          .ttl_us = ttl_us})[0];
}

TEST(EngineEvictTest, TheLeastRecentlyUsedPageGoesAndProbesKeepNothingAlive) {
  Rig rig(Tight());
  std::vector<uint8_t> got;
  for (uint64_t key = 0; key < kLossyPages; ++key) rig.Put(key, PageOf(key));
  EXPECT_EQ(rig.Get(0, &got).result, BlockResult::kOk);
  for (int i = 0; i < 50; ++i) rig.Lookup(1);
  rig.Put(100, PageOf(100));
  EXPECT_EQ(rig.Lookup(0).result, BlockResult::kOk) << "it was used";
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss) << "it was only looked up";
  EXPECT_EQ(rig.engine->stats().evicted_dropped, 1u);
}

// One client asks for all keys all the time, another puts: nobody is refused, and what is probed
// goes as if it were not.
TEST(EngineEvictTest, ProbesOfAllKeysDoNotKeepNewPagesOut) {
  for (const PolicyKind policy : {PolicyKind::kS3Fifo, PolicyKind::kLru}) {
    RigOptions options = Tight();
    options.policy = policy;
    Rig rig(options);
    rig.AddWorker({.session = 2});
    for (uint64_t key = 0; key < kLossyPages; ++key) rig.Put(key, PageOf(key));
    RequestSpec probe{.type = WireType::kLookup};
    for (uint64_t key = 0; key < kLossyPages; ++key) {
      probe.blocks.push_back({.digest = DigestNumber(key)});
    }
    for (uint64_t key = 1000; key < 1200; ++key) {
      rig.worker(1).Send(probe);
      EXPECT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
      rig.worker(1).Send(probe);
    }
    rig.Settle();
    const EngineStats stats = rig.engine->stats();
    EXPECT_EQ(stats.evicted_dropped, 200u);
    EXPECT_EQ(stats.eviction_failures, 0u);
    EXPECT_EQ(stats.pool_pinned, 0u);
    for (uint64_t key = 0; key < kLossyPages; ++key) {
      EXPECT_EQ(rig.Lookup(key).result, BlockResult::kMiss) << key;
    }
    rig.ExpectAtRest();
  }
}

TEST(EngineEvictTest, LeavesGoBeforeThePrefixesTheyHangOn) {
  Rig rig(Tight());
  rig.PutChained(1, 0, 0);
  for (uint64_t key = 2; key <= 4; ++key) {
    rig.PutChained(key, key - 1, static_cast<uint32_t>(key - 1) * kTokens);
  }
  for (uint64_t key = 10; key < 10 + kLossyPages - 4; ++key) rig.Put(key, PageOf(key));
  rig.Put(100, PageOf(100));
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kOk);
  EXPECT_EQ(rig.Lookup(3).result, BlockResult::kOk);
  EXPECT_EQ(rig.Lookup(4).result, BlockResult::kMiss) << "the leaf of the oldest chain";
  rig.Put(101, PageOf(101));
  EXPECT_EQ(rig.Lookup(3).result, BlockResult::kMiss) << "now it is a leaf";
}

TEST(EngineEvictTest, APoolFullOfPinsRefusesAtOnceAndServesAgainWhenTheyExpire) {
  Rig rig(Tight());
  for (uint64_t key = 0; key < kLossyPages; ++key) {
    rig.Put(key, PageOf(key));
    EXPECT_EQ(PinPage(rig, key, 500'000), BlockResult::kOk);
  }
  EXPECT_EQ(rig.Put(100, PageOf(100)).result, BlockResult::kNoSpace);
  EXPECT_EQ(rig.engine->stats().alloc_failures, 1u);
  rig.ExpectAtRest();
  rig.clock.Advance(500'000);
  EXPECT_EQ(rig.Put(100, PageOf(100)).result, BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().pins, 0u);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
}

// Somebody's transfer never ends: that must not turn a refusal into a wait for the deadline.
TEST(EngineEvictTest, APoolFullOfPinsRefusesSoonAlsoWhileAnotherOperationHangs) {
  Rig rig(Tight());
  rig.AddWorker({.session = 2});
  for (uint64_t key = 0; key < kLossyPages - 1; ++key) {
    rig.Put(key, PageOf(key));
    PinPage(rig, key, 10'000'000);
  }
  rig.wire->hold = true;
  rig.worker(1).Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(50)}}});
  rig.Settle();
  const uint64_t id =
      rig.worker().Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(60)}}});
  rig.Settle();
  EXPECT_FALSE(rig.worker().Answered(id));
  rig.clock.Advance(50'000);
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kNoSpace);
}

TEST(EngineEvictTest, PinsEndByUnpinAndMoveTheirEndWhenRenewed) {
  Rig rig(Tight());
  rig.Put(1, PageOf(1));
  EXPECT_EQ(PinPage(rig, 77, 1000), BlockResult::kMiss);
  EXPECT_EQ(PinPage(rig, 1, 1000), BlockResult::kOk);
  rig.clock.Advance(900);
  EXPECT_EQ(PinPage(rig, 1, 1000), BlockResult::kOk);
  rig.clock.Advance(900);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().pins, 1u) << "one pin, renewed";
  EXPECT_EQ(PinPage(rig, 1, 0), BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().pins, 0u);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
}

TEST(EngineEvictTest, ManyPinsThatNobodyUsesDoNotStopNewPages) {
  Rig rig(Tight());
  for (int round = 0; round < 100; ++round) {
    rig.Put(static_cast<uint64_t>(round % 10), PageOf(1));
    PinPage(rig, static_cast<uint64_t>(round % 10), 500'000);
  }
  rig.clock.Advance(1'000'000);
  for (uint64_t key = 100; key < 200; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
}

TEST(EngineEvictTest, AnotherSizeOfPageFindsRoom) {
  Rig rig(Tight());
  for (uint64_t key = 0; key < kLossyPages; ++key) rig.Put(key, PageOf(key));
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, rig.Bind(CodecKind::kRaw)).ok());
  for (uint64_t key = 100; key < 120; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk) << key;
  }
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, rig.Bind(CodecKind::kCrumbInt2)).ok());
  for (uint64_t key = 200; key < 220; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk) << key;
  }
  EXPECT_LE(rig.engine->stats().pool_used_bytes, rig.engine->stats().pool_capacity_bytes);
  rig.ExpectAtRest();
}

TEST(EngineEvictTest, AnotherSizeOfPageFindsRoomByWritingTheOthersOut) {
  Rig rig(Tight(8 << 20));
  for (uint64_t key = 0; key < kLossyPages; ++key) rig.Put(key, PageOf(key));
  ASSERT_TRUE(rig.engine->BindLayout(2, rig.Bind(CodecKind::kRaw)).ok());
  ASSERT_TRUE(rig.engine->RegisterRegions({1}, 2, 2, rig.worker().Spec()).ok());
  for (uint64_t key = 100; key < 120; ++key) {
    rig.worker().Fill(0, PageOf(key));
    ASSERT_EQ(rig.Ask({.type = WireType::kPut,
                       .blocks = {{.digest = DigestNumber(key)}},
                       .layout = 2,
                       .region_set = 2})
                  .result,
              BlockResult::kOk);
  }
  std::vector<uint8_t> got;
  for (uint64_t key = 0; key < kLossyPages; ++key) {
    ASSERT_EQ(rig.Get(key, &got).result, BlockResult::kOk) << key;
    EXPECT_EQ(got, AfterLoss(PageOf(key), 4));
  }
  EXPECT_EQ(rig.engine->stats().evicted_dropped, 0u);
  rig.ExpectAtRest();
}

TEST(EngineEvictTest, APinnedPageIsNeverEvictedByAnotherSize) {
  Rig rig(Tight());
  for (uint64_t key = 0; key < kLossyPages; ++key) rig.Put(key, PageOf(key));
  PinPage(rig, 5, 1'000'000);
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, rig.Bind(CodecKind::kRaw)).ok());
  EXPECT_EQ(rig.Put(100, PageOf(100)).result, BlockResult::kNoSpace);
  rig.clock.Advance(1'000'000);
  EXPECT_EQ(rig.Put(100, PageOf(100)).result, BlockResult::kOk);
}

TEST(EngineEvictTest, AFullIndexForgetsInsteadOfRefusing) {
  RigOptions options;
  options.limits.index_entries_max = 8;
  Rig rig(options);
  for (uint64_t key = 0; key < 30; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
  EXPECT_EQ(rig.engine->stats().index_entries, 8u);
  EXPECT_EQ(rig.engine->stats().pool_pages, 8u);
  EXPECT_EQ(rig.Lookup(29).result, BlockResult::kOk);
}

TEST(EngineEvictTest, ManyPutsAtOnceOverASmallPoolAllEnd) {
  Rig rig(Tight(8 << 20));
  std::vector<uint64_t> ids;
  for (uint64_t key = 0; key < 60; ++key) {
    rig.worker().Fill(static_cast<uint32_t>(key), PageOf(key));
    ids.push_back(rig.worker().Send(
        {.type = WireType::kPut,
         .blocks = {{.digest = DigestNumber(key), .slot = static_cast<uint32_t>(key)}}}));
  }
  rig.Settle();
  for (const uint64_t id : ids) EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  for (uint64_t key = 0; key < 60; ++key) {
    ASSERT_EQ(rig.Get(key, &got).result, BlockResult::kOk);
    EXPECT_EQ(got, AfterLoss(PageOf(key), 4));
  }
}

// A put fills the pool while a get's page is on its way to a slow peer: the page stays put.
TEST(EngineEvictTest, ASlowReaderKeepsItsPage) {
  Rig rig(Tight());
  rig.AddWorker({.session = 2});
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, rig.Bind(CodecKind::kRaw)).ok());
  rig.Put(1, PageOf(1));
  rig.wire->hold = true;
  const uint64_t id = rig.worker(1).Send(
      {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 3}}});
  rig.Settle();
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.wire->hold = false;
  for (uint64_t key = 10; key < 40; ++key)
    rig.worker(0).Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key)}}});
  rig.Settle();
  EXPECT_EQ(rig.worker(1).Answer(id).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker(1).Read(3), PageOf(1));
  EXPECT_EQ(Xxh3(rig.worker(1).Read(3)), rig.worker(1).Answer(id).checksum);
  rig.ExpectAtRest();
}

}  // namespace
}  // namespace crumb::testing
