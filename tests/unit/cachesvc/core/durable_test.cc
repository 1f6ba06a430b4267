// Durable puts: what was answered survives, also while pages are evicted or replaced.
#include <gtest/gtest.h>

#include <memory>

#include "storage/segment/log_format.h"
#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

TEST(EngineDurableTest, WhatWasAnsweredDurableSurvivesAPowerLoss) {
  Rig rig(Tiered());
  for (uint64_t key = 1; key <= 5; ++key) {
    EXPECT_EQ(rig.Put(key, PageOf(key), kWireFlagDurable).result, BlockResult::kOk);
  }
  rig.Put(6, PageOf(6));
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.engine->stats().index_entries, 5u);
  for (uint64_t key = 1; key <= 5; ++key) ExpectHit(rig, key, Tier::kNvme);
  ExpectMiss(rig, 6);
}

TEST(EngineDurableTest, TheAnswerWaitsForTheDevice) {
  Rig rig(Tiered());
  rig.Put(9, PageOf(9), kWireFlagDurable);  // opens the first segment
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 30}; });
  rig.worker().Fill(0, PageOf(1));
  const uint64_t id = rig.worker().Send(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}, .flags = kWireFlagDurable});
  for (int i = 0; i < 20; ++i) rig.Turn();
  EXPECT_FALSE(rig.worker().Answered(id));
  EXPECT_EQ(rig.engine->stats().pool_pages, 2u);
  for (int i = 0; i < 40; ++i) rig.Turn();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kOk);
}

TEST(EngineDurableTest, WithoutATierOrWithAFailingOneTheAnswerSaysNotDurable) {
  Rig memory;
  EXPECT_EQ(memory.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kNotDurable);
  ExpectHit(memory, 1, Tier::kDram);
  Rig rig(Tiered());
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 28};
  });
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kNotDurable);
  ExpectHit(rig, 1, Tier::kDram);
  rig.ExpectAtRest();
}

TEST(EngineDurableTest, AFullTierThatRefusesEveryWriteDegradesToMemory) {
  Rig rig(Tiered());
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 28};
  });
  for (uint64_t key = 0; key < 4 * kPages; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk) << key;
  }
  ExpectHit(rig, 4 * kPages - 1, Tier::kDram);
  EXPECT_GT(rig.engine->stats().evicted_dropped, 0u);
  rig.ExpectAtRest();
}

TEST(EngineDurableTest, ADurablePutOfWhatIsThereMakesThatDurable) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kExists);
  const uint64_t written = rig.engine->stats().nvme.bytes_written;
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kExists);
  EXPECT_EQ(rig.engine->stats().nvme.bytes_written, written) << "it was durable already";
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 1, Tier::kNvme);
}

TEST(EngineDurableTest, ADurablePutOfAPageThatOnlyLiesOnNvmeMakesItDurable) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  EXPECT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 1, Tier::kNvme);
}

// The put waits for the write that is under way; that one is not stable, and evicts the page.
TEST(EngineDurableTest, ADurablePutOfAPageThatIsBeingEvictedMakesItDurable) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);  // opens a segment
  rig.Put(2, PageOf(2));
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 0u : 30u};
  });
  std::vector<uint64_t> others;
  for (uint32_t key = 3; key < 3 + kPages; ++key) {
    rig.worker().Fill(key, PageOf(key));
    others.push_back(rig.worker().Send(
        {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key), .slot = key}}}));
  }
  for (int i = 0; i < 5; ++i) rig.Turn();
  rig.worker().Fill(0, PageOf(2));
  const uint64_t id = rig.worker().Send(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(2)}}, .flags = kWireFlagDurable});
  for (int i = 0; i < 1000 && !rig.worker().Answered(id); ++i) rig.Turn();
  const BlockResult result = rig.worker().Answer(id).result;
  EXPECT_TRUE(result == BlockResult::kOk || result == BlockResult::kExists) << ToString(result);
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 2, Tier::kNvme);
}

TEST(EngineDurableTest, TheSameInPageForm) {
  RigOptions options = Tiered();
  options.policy = PolicyKind::kLru;  // one flood pushes out what was used
  Rig rig(options);
  rig.Put(1, PageOf(1));
  std::vector<uint8_t> page;
  rig.Get(1, &page, PageForm::kPage);
  FillMemory(rig);
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  rig.worker().Fill(0, page);
  BlockSpec block{.digest = DigestNumber(1)};
  block.value_bytes = static_cast<uint32_t>(page.size());
  EXPECT_EQ(rig.Ask({.type = WireType::kPut,
                     .blocks = {block},
                     .flags = kWireFlagDurable,
                     .form = PageForm::kPage})
                .result,
            BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 1, Tier::kNvme);
}

TEST(EngineDurableTest, AByteThatFlipsInMemoryIsNoMissOfAPageThatIsOnDisk) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.pool->arena()[kPageHeaderBytes + 50] ^= 1;
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.engine->stats().checksum_failures_dram, 1u);
  EXPECT_EQ(rig.engine->stats().hit_then_failed, 0u);
  rig.ExpectAtRest();
  ExpectHit(rig, 1, Tier::kDram);
}

TEST(EngineDurableTest, ABetterPageReplacesADurableOneDurably) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  ASSERT_TRUE(rig.engine->BindLayout(2, rig.Bind(CodecKind::kRaw)).ok());
  ASSERT_TRUE(rig.engine->RegisterRegions({1}, 2, 2, rig.worker().Spec()).ok());
  rig.worker().Fill(0, PageOf(2));
  EXPECT_EQ(rig.Ask({.type = WireType::kPut,
                     .blocks = {{.digest = DigestNumber(1)}},
                     .layout = 2,
                     .region_set = 2})
                .result,
            BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, PageOf(2));
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);  // neither of the two comes back
}

// A worker that asks for key 1, which lies on NVMe alone, while a better page of it is put durably.
class EngineReplaceTest : public ::testing::Test {
 protected:
  void Begin(uint32_t index_entries_max = 1 << 20) {
    RigOptions options = Tiered();
    options.main_bytes = 1 << 20;
    options.limits.index_entries_max = index_entries_max;
    Begin(options);
  }
  // The get takes its page past the memory, which is full of pages that are hotter.
  void BeginApart() {
    RigOptions options = Tiered();
    options.nvme_promotion = NvmePromotion::kSecond;
    Begin(options);
    FillMemory(*rig_);
  }
  void Begin(const RigOptions& options) {
    rig_ = std::make_unique<Rig>(options);
    rig_->Put(1, PageOf(1), kWireFlagDurable);
    rig_->Restart(&kNothingSurvives);
    ASSERT_EQ(rig_->Lookup(1).tier, Tier::kNvme);
    ASSERT_TRUE(rig_->engine->BindLayout(2, rig_->Bind(CodecKind::kRaw)).ok());
    ASSERT_TRUE(rig_->engine->RegisterRegions({1}, 2, 2, rig_->worker().Spec()).ok());
  }
  void Plan(uint32_t read_polls, int read_error, uint32_t write_polls) {
    rig_->faults->SetPlan([=](const IoRequest& request, uint64_t) {
      const bool read = request.op == IoOp::kRead;
      return Fault{.error = read ? read_error : 0,
                   .delay_polls = read ? read_polls : write_polls,
                   .flip_bit = read ? 8 * 200 : -1};
    });
  }
  uint64_t SendGet(uint32_t slot = 1) {
    return rig_->worker().Send(
        {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = slot}}});
  }
  uint64_t SendBetter() {
    rig_->worker().Fill(0, PageOf(2));
    return rig_->worker().Send({.type = WireType::kPut,
                                .blocks = {{.digest = DigestNumber(1)}},
                                .flags = kWireFlagDurable,
                                .layout = 2,
                                .region_set = 2});
  }
  void ExpectBetterAfterAPowerLoss() {
    rig_->faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
    rig_->Restart(&kNothingSurvives);
    std::vector<uint8_t> got;
    ASSERT_EQ(rig_->Get(1, &got).result, BlockResult::kOk) << "a durable page is lost";
    EXPECT_EQ(got, PageOf(2));
  }

  std::unique_ptr<Rig> rig_;
};

TEST_F(EngineReplaceTest, ARottenRecordThatWasReplacedWhileItWasReadTakesNothingWithIt) {
  Begin();
  Plan(200, 0, 0);
  const uint64_t get = SendGet();
  for (int i = 0; i < 6; ++i) rig_->Turn();
  const uint64_t put = SendBetter();
  for (int i = 0; i < 40; ++i) rig_->Turn();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
  EXPECT_FALSE(rig_->worker().Answered(get));
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kOk);
  EXPECT_EQ(rig_->worker().Read(1), PageOf(2));
  EXPECT_EQ(rig_->engine->stats().checksum_failures_nvme, 1u);
  rig_->ExpectAtRest();
  ExpectBetterAfterAPowerLoss();
}

TEST_F(EngineReplaceTest, ARecordThatFailsWhileItIsReplacedTakesNothingWithIt) {
  for (const int error : {0, 5}) {
    Begin();
    Plan(20, error, 200);
    const uint64_t put = SendBetter();
    const uint64_t get = SendGet();
    for (int i = 0; i < 100; ++i) rig_->Turn();
    EXPECT_FALSE(rig_->worker().Answered(put));
    EXPECT_FALSE(rig_->worker().Answered(get)) << "the better page is on its way";
    rig_->Settle();
    EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
    EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kOk);
    EXPECT_EQ(rig_->worker().Read(1), PageOf(2));
    rig_->ExpectAtRest();
    ExpectBetterAfterAPowerLoss();
  }
}

TEST_F(EngineReplaceTest, IfTheReplacementFailsTooTheKeyIsForgotten) {
  Begin();
  rig_->faults->SetPlan([](const IoRequest& request, uint64_t) {
    const bool read = request.op == IoOp::kRead;
    const bool page = !read && request.bytes > kLogBlock;
    return Fault{.error = page ? 5 : 0, .delay_polls = page ? 200u : 20u, .flip_bit = 8 * 200};
  });
  const uint64_t put = SendBetter();
  const uint64_t get = SendGet();
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kIo);
  EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kMiss);
  rig_->faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  rig_->Restart(&kNothingSurvives);
  ExpectMiss(*rig_, 1);
  rig_->ExpectAtRest();
}

TEST_F(EngineReplaceTest, AGetPastTheMemoryFindsWhatReplacedItsPageMeanwhile) {
  for (const int error : {0, 5}) {
    BeginApart();
    Plan(200, error, 0);
    const uint64_t get = SendGet();
    for (int i = 0; i < 6; ++i) rig_->Turn();
    ASSERT_EQ(rig_->engine->stats().promotions_deferred, 1u);
    const uint64_t put = SendBetter();
    for (int i = 0; i < 40; ++i) rig_->Turn();
    EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
    EXPECT_FALSE(rig_->worker().Answered(get));
    rig_->Settle();
    EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kOk) << "a durable page was missed";
    EXPECT_EQ(rig_->worker().Read(1), PageOf(2));
    rig_->ExpectAtRest();
    ExpectBetterAfterAPowerLoss();
  }
}

TEST_F(EngineReplaceTest, ARecordThatFailsPastTheMemoryIsNotTakenForThePageInMemory) {
  for (const int error : {0, 5}) {
    BeginApart();
    int reads = 0;
    rig_->faults->SetPlan([&reads, error](const IoRequest& request, uint64_t) {
      if (request.op != IoOp::kRead || ++reads > 1) return Fault{};
      return Fault{.error = error, .delay_polls = 200, .flip_bit = 8 * 200};
    });
    const uint64_t apart = SendGet();
    for (int i = 0; i < 6; ++i) rig_->Turn();
    const uint64_t raised = SendGet(2);
    for (int i = 0; i < 40; ++i) rig_->Turn();
    EXPECT_EQ(rig_->worker().Answer(raised).result, BlockResult::kOk);
    EXPECT_EQ(rig_->engine->stats().promoted, 1u);
    EXPECT_FALSE(rig_->worker().Answered(apart));
    rig_->Settle();
    EXPECT_EQ(rig_->worker().Answer(apart).result, BlockResult::kOk) << "it was in memory";
    EXPECT_EQ(rig_->worker().Read(1), AfterLoss(PageOf(1), 4));
    // The record is gone; who asks for a durable page must not be told that there is one.
    EXPECT_EQ(rig_->Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kExists);
    rig_->ExpectAtRest();
    rig_->Restart(&kNothingSurvives);
    ExpectHit(*rig_, 1, Tier::kNvme);
  }
}

TEST_F(EngineReplaceTest, AFullIndexDoesNotForgetAKeyWhoseReplacementIsOnItsWay) {
  Begin(4);
  Plan(0, 0, 1000);
  const uint64_t put = SendBetter();
  for (int i = 0; i < 20; ++i) rig_->Turn();
  for (uint64_t key = 2000; key < 2010; ++key) {
    rig_->worker().Fill(3, PageOf(key));
    rig_->worker().Send(
        {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key), .slot = 3}}});
    for (int i = 0; i < 4; ++i) rig_->Turn();
  }
  EXPECT_FALSE(rig_->worker().Answered(put));
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
  ExpectBetterAfterAPowerLoss();
}

}  // namespace
}  // namespace crumb::testing
