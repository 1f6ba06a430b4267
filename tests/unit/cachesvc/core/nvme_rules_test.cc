// nvme.admission and nvme.promotion: what is written, what is raised, and what neither may cost.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

RigOptions SeenOnly() {
  RigOptions options = Tiered();
  options.nvme_admission = NvmeAdmission::kSeen;
  return options;
}

RigOptions OnSecond() {
  RigOptions options = Tiered();
  options.nvme_promotion = NvmePromotion::kSecond;
  return options;
}

TEST(EngineAdmissionTest, PagesThatNobodyGotAreDroppedUnwritten) {
  RigOptions options = SeenOnly();
  options.policy = PolicyKind::kLru;  // a flood pushes out what was used
  Rig rig(options);
  FillMemory(rig, 1000);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1003, &got).result, BlockResult::kOk);
  for (int i = 0; i < 5; ++i) {
    rig.Lookup(1004);  // a probe is no get
    rig.Ask({.type = WireType::kPrefetch, .blocks = {{.digest = DigestNumber(1005)}}});
  }
  for (uint64_t key = 2000; key < 2000 + 2 * kPages; ++key) rig.Put(key, PageOf(key));
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.evicted_to_nvme, 1u);
  EXPECT_EQ(stats.nvme.records, 1u);
  EXPECT_EQ(stats.evicted_unseen, 2 * kPages - 1);
  EXPECT_EQ(stats.evicted_dropped, 2 * kPages - 1);
  EXPECT_EQ(stats.eviction_failures, 0u);
  ExpectHit(rig, 1003, Tier::kNvme);
  ExpectMiss(rig, 1004);
  ExpectMiss(rig, 1005);
  rig.ExpectAtRest();
}

TEST(EngineAdmissionTest, APageThatComesBackSoonIsWritten) {
  Rig rig(SeenOnly());
  FillMemory(rig, 1000);
  FillMemory(rig, 2000);
  EXPECT_EQ(rig.engine->stats().nvme.records, 0u);
  ASSERT_EQ(rig.Lookup(1000).result, BlockResult::kMiss);
  rig.Put(1000, PageOf(1000));
  // Known as one that came back, it stays longer than those that are new.
  for (uint64_t key = 3000; key < 3000 + 4 * kPages; ++key) {
    rig.Put(key, PageOf(key));
    std::vector<uint8_t> got;
    rig.Get(key, &got);
  }
  ExpectHit(rig, 1000, Tier::kNvme);
}

TEST(EngineAdmissionTest, DurablePutsAndDrainsWriteWhatNobodyGot) {
  Rig rig(SeenOnly());
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().nvme.records, 1u);
  rig.Put(2, PageOf(2));
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&drained] { drained = true; });
  rig.Settle();
  EXPECT_TRUE(drained);
  EXPECT_EQ(rig.engine->stats().nvme.records, 2u);
}

TEST(EnginePromotionTest, TheFirstGetTakesNothingFromHotterPagesAndTheSecondRaises) {
  Rig rig(OnSecond());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  const uint64_t evicted = rig.engine->stats().evicted_to_nvme;
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  EXPECT_EQ(rig.engine->stats().evicted_to_nvme, evicted) << "something made room for it";
  EXPECT_EQ(rig.engine->stats().promotions_deferred, 1u);
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.Lookup(1).tier, Tier::kDram);
  EXPECT_EQ(rig.engine->stats().promoted, 1u);
  ExpectHit(rig, 1, Tier::kDram);
  rig.ExpectAtRest();
}

TEST(EnginePromotionTest, FreeMemoryIsTakenAtOnce) {
  Rig rig(OnSecond());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  rig.Delete(1000 + kPages - 1);
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.Lookup(1).tier, Tier::kDram);
  EXPECT_EQ(rig.engine->stats().promotions_deferred, 0u);
}

TEST(EnginePromotionTest, EveryFormAndManyAtOnceAreServedExactly) {
  Rig rig(OnSecond());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  for (const PageForm form : {PageForm::kPacked, PageForm::kPage}) {
    FillMemory(rig, form == PageForm::kPage ? 2000 : 3000);
    std::vector<uint8_t> bytes;
    EXPECT_EQ(rig.Get(1, &bytes, form).tier, Tier::kNvme);
    if (form == PageForm::kPage) {
      EXPECT_EQ(CheckPage(bytes), PageCheck::kOk);
    }
    rig.Delete(1);
    rig.Put(1, PageOf(1));
    FillMemory(rig, form == PageForm::kPage ? 4000 : 5000);
  }
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
  rig.ExpectAtRest();
}

TEST(EnginePromotionTest, WhatStagingCannotHoldIsRaised) {
  RigOptions options = OnSecond();
  options.main_bytes = 1 << 20;
  options.staging_bytes = 24 << 10;  // either half holds a raw page, and nothing beside it
  Rig rig(options);
  rig.Put(1, PageOf(1));
  for (uint64_t key = 1000; rig.Lookup(1).tier != Tier::kNvme && key < 2000; ++key) {
    rig.Put(key, PageOf(key));
  }
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.Lookup(1).tier, Tier::kDram);
}

TEST(EnginePromotionTest, AReadErrorOfAPageThatWouldStayIsAMiss) {
  Rig rig(OnSecond());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 5 : 0};
  });
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  rig.ExpectAtRest();
}

}  // namespace
}  // namespace crumb::testing
