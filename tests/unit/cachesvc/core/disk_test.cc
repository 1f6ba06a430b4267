// The NVMe tier behind the engine: spill, read back, damage, reclaim, recovery.
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

TEST(EngineDiskTest, AnEvictedPageComesBackFromNvmeAndIsInMemoryThen) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  EXPECT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  ExpectHit(rig, 1, Tier::kNvme);
  ExpectHit(rig, 1, Tier::kDram);
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.evicted_to_nvme, 2u);  // page 1, then one that made room for it
  EXPECT_EQ(stats.evicted_dropped, 0u);
  EXPECT_EQ(stats.hits[static_cast<size_t>(Tier::kNvme)], 1u);
  rig.ExpectAtRest();
}

TEST(EngineDiskTest, EveryFormComesBackFromNvme) {
  RigOptions options = Tiered();
  options.policy = PolicyKind::kLru;  // one flood pushes out what was used
  Rig rig(options);
  rig.Put(1, PageOf(1));
  std::vector<uint8_t> before, after;
  rig.Get(1, &before, PageForm::kPage);
  for (const PageForm form : {PageForm::kPage, PageForm::kPacked}) {
    FillMemory(rig, form == PageForm::kPage ? 1000 : 2000);
    const WireBlockReply reply = rig.Get(1, &after, form);
    EXPECT_EQ(reply.tier, Tier::kNvme);
    const size_t skip = form == PageForm::kPage ? 0 : kPageHeaderBytes;
    EXPECT_TRUE(std::equal(after.begin(), after.end(),
                           before.begin() + static_cast<std::ptrdiff_t>(skip), before.end()));
  }
}

TEST(EngineDiskTest, ParallelGetsOfOneColdKeyShareOneRead) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  uint64_t reads = 0;
  rig.faults->SetPlan([&reads](const IoRequest& request, uint64_t) {
    if (request.op == IoOp::kRead) ++reads;
    return Fault{.delay_polls = 2};
  });
  std::vector<uint64_t> ids;
  for (uint32_t slot = 0; slot < 20; ++slot) {
    ids.push_back(rig.worker().Send(
        {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = slot}}}));
  }
  rig.Settle();
  for (uint32_t slot = 0; slot < 20; ++slot) {
    EXPECT_EQ(rig.worker().Answer(ids[slot]).result, BlockResult::kOk);
    EXPECT_EQ(rig.worker().Read(slot), AfterLoss(PageOf(1), 4));
  }
  EXPECT_EQ(reads, 1u);
}

TEST(EngineDiskTest, ARottenSectorIsAMissAndACounterAndHurtsNobodyElse) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  rig.Put(2, PageOf(2));
  FillMemory(rig);
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  ASSERT_EQ(rig.Lookup(2).tier, Tier::kNvme);
  const std::vector<uint8_t> payload = [] {
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < 256; ++i) bytes.push_back(PageOf(1)[i * 4]);
    return bytes;
  }();
  MutableBytes image = rig.device->mutable_image();
  const auto at = std::search(image.begin(), image.end(), payload.begin(), payload.end());
  ASSERT_NE(at, image.end());
  at[100] ^= 1;
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.engine->stats().checksum_failures_nvme, 1u);
  EXPECT_EQ(rig.engine->stats().hit_then_failed, 1u);
  ExpectHit(rig, 2, Tier::kNvme);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  rig.Restart();
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss) << "it would fail again";
  ExpectHit(rig, 2, Tier::kNvme);
}

TEST(EngineDiskTest, AReadErrorIsAMiss) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 5 : 0};
  });
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Put(1, PageOf(1)).result, BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EngineDiskTest, AGetThatGivesUpDoesNotStopTheReadForOthers) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  bool stuck = true;
  rig.faults->SetPlan([&stuck](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead && stuck ? 50u : 0u};
  });
  RequestSpec spec{.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 1}}};
  const uint64_t patient = rig.worker().Send(spec);
  spec.deadline_us = 100;
  const uint64_t hasty = rig.worker().Send(spec);
  for (int i = 0; i < 5; ++i) rig.Turn();
  rig.clock.Advance(100);
  for (int i = 0; i < 5; ++i) rig.Turn();
  EXPECT_EQ(rig.worker().Answer(hasty).result, BlockResult::kTimeout);
  EXPECT_FALSE(rig.worker().Answered(patient));
  for (int i = 0; i < 60; ++i) rig.Turn();
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(patient).result, BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EngineDiskTest, APoolFullOfPinsStillServesPagesFromNvme) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  for (uint64_t key = 1000; key < 1000 + kPages; ++key) {
    EXPECT_EQ(rig.engine->Pin({.layout_handle = kLayout,
                               .session = {1},
                               .digests = {DigestNumber(key)},
                               .ttl_us = 1'000'000})[0],
              BlockResult::kOk);
  }
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  ExpectHit(rig, 1, Tier::kNvme);
  ExpectHit(rig, 1, Tier::kNvme);  // it could not stay
  std::vector<uint8_t> packed, page;
  EXPECT_EQ(rig.Get(1, &packed, PageForm::kPacked).result, BlockResult::kOk);
  EXPECT_EQ(rig.Get(1, &page, PageForm::kPage).result, BlockResult::kOk);
  EXPECT_EQ(CheckPage(page), PageCheck::kOk);
  EXPECT_EQ(rig.engine->stats().staging_used_bytes, 0u);
}

TEST(EngineRecoveryTest, AnOrderlyRestartKeepsWhatWasSpilledAndDrained) {
  Rig rig(Tiered());
  for (uint64_t key = 0; key < 3 * kPages; ++key) rig.Put(key, PageOf(key));
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&drained] { drained = true; });
  rig.Settle();
  ASSERT_TRUE(drained);
  rig.Restart();
  EXPECT_EQ(rig.engine->stats().index_entries, 3 * kPages);
  EXPECT_EQ(rig.engine->stats().nvme.recovered, 3 * kPages);
  for (uint64_t key = 0; key < 3 * kPages; ++key) ExpectHit(rig, key, Tier::kNvme);
}

TEST(EngineRecoveryTest, RecoveredPagesKeepTheirIdentityTenantAndChain) {
  Rig rig(Tiered());
  rig.worker().Fill(0, PageOf(1));
  const BlockSpec partial{.digest = DigestNumber(1), .token_start = 32, .token_count = 7};
  ASSERT_EQ(
      rig.Ask({.type = WireType::kPut, .blocks = {partial}, .flags = kWireFlagDurable}).result,
      BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.PutChained(2, 1, 39).result, BlockResult::kInvalid) << "its parent is partial";
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  ASSERT_TRUE(rig.engine->BindLayout(5, rig.Bind(CodecKind::kCrumbInt2, "other")).ok());
  rig.AddWorker({.session = 9, .tenant = "other", .layout = 5});
  const RequestSpec get{
      .type = WireType::kGet, .blocks = {{.digest = DigestNumber(1)}}, .layout = 5};
  EXPECT_EQ(rig.Ask(get, 1).result, BlockResult::kMiss);
}

TEST(EngineRecoveryTest, AnIndexSmallerThanTheDiskIsFilledAndNoMore) {
  RigOptions options = Tiered();
  Rig rig(options);
  for (uint64_t key = 0; key < 40; ++key) rig.Put(key, PageOf(key), kWireFlagDurable);
  rig.options.limits.index_entries_max = 10;
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.engine->stats().index_entries, 10u);
  EXPECT_EQ(rig.Put(100, PageOf(100)).result, BlockResult::kOk);
}

TEST(EngineReclaimTest, TheOldestRecordsGoAndTheIndexFollows) {
  Rig rig(Tiered());
  constexpr uint64_t kMany = 3000;  // 12 MiB of records over a log of 8 MiB
  for (uint64_t key = 0; key < kMany; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
  const EngineStats stats = rig.engine->stats();
  EXPECT_GT(stats.nvme.segments_reclaimed, 0u);
  EXPECT_LE(stats.nvme.used_bytes, stats.nvme.capacity_bytes);
  EXPECT_LT(stats.index_entries, 2200u);
  uint64_t hits = 0;
  std::vector<uint8_t> got;
  for (uint64_t key = 0; key < kMany; key += 7) {
    const WireBlockReply reply = rig.Get(key, &got);
    if (reply.result != BlockResult::kOk) continue;
    ++hits;
    ASSERT_EQ(got, AfterLoss(PageOf(key), 4));
  }
  EXPECT_GT(hits, 100u);
  EXPECT_EQ(rig.engine->stats().hit_then_failed, 0u);
  rig.ExpectAtRest();
}

TEST(EngineReclaimTest, APageInMemoryOnlyLosesItsPlaceOnDisk) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  ASSERT_EQ(rig.engine->Pin({.layout_handle = kLayout,
                             .session = {1},
                             .digests = {DigestNumber(1)},
                             .ttl_us = 3'000'000'000})[0],
            BlockResult::kOk);
  for (uint64_t key = 100; key < 3100; ++key) rig.Put(key, PageOf(key));
  ExpectHit(rig, 1, Tier::kDram);
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kExists);
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 1, Tier::kNvme);  // written anew by the last put
}

}  // namespace
}  // namespace crumb::testing
