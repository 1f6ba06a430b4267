// The NVMe tier behind the engine: spill, read back, durable, damage, reclaim, recovery, delete.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "storage/segment/log_format.h"
#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

constexpr uint64_t kPages = 16;  // lossy pages that fit into memory

RigOptions Tiered(uint64_t nvme_bytes = 8 << 20) {
  RigOptions options;
  options.main_bytes = 64 << 10;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = nvme_bytes;
  return options;
}

const MemDevice::Survives kNothingSurvives = [](const MemDevice::Write&, uint64_t) {
  return false;
};

void FillMemory(Rig& rig, uint64_t first_key = 1000) {
  for (uint64_t key = first_key; key < first_key + kPages; ++key) rig.Put(key, PageOf(key));
}

void ExpectHit(Rig& rig, uint64_t key, Tier tier) {
  std::vector<uint8_t> got;
  const WireBlockReply reply = rig.Get(key, &got);
  ASSERT_EQ(reply.result, BlockResult::kOk) << key;
  EXPECT_EQ(reply.tier, tier) << key;
  EXPECT_EQ(got, AfterLoss(PageOf(key), 4)) << key;
}

void ExpectMiss(Rig& rig, uint64_t key) {
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(key, &got).result, BlockResult::kMiss) << key;
}

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
  Rig rig(Tiered());
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
  Rig rig(Tiered());
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
  uint64_t SendGet() {
    return rig_->worker().Send(
        {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 1}}});
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

TEST(EngineDeleteTest, ADeletedPageStaysDeletedAfterAPowerLoss) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
}

TEST(EngineDeleteTest, APageDeletedWhileItIsWrittenOutStaysDeleted) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 0u : 3u};
  });
  for (uint64_t key = 1000; key < 1000 + kPages - 1; ++key) rig.Put(key, PageOf(key));
  rig.worker().Fill(0, PageOf(50));
  rig.worker().Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(50)}}});
  for (int i = 0; i < 6; ++i) rig.Turn();  // page 1 is on its way to the device
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Settle();
  ExpectMiss(rig, 1);
  const MemDevice::Survives everything = [](const MemDevice::Write&, uint64_t) { return true; };
  rig.Restart(&everything);
  ExpectMiss(rig, 1);
}

TEST(EngineDeleteTest, APutAfterADeleteOfTheSameKeyIsNotHitByItsTombstone) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 2}; });
  rig.worker().Fill(0, PageOf(2));
  const uint64_t erase =
      rig.worker().Send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(1)}}});
  const uint64_t put = rig.worker().Send(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}, .flags = kWireFlagDurable});
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(erase).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker().Answer(put).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  std::vector<uint8_t> got;
  ASSERT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, AfterLoss(PageOf(2), 4));
}

TEST(EngineDeleteTest, ADeleteAfterOneThatFailedHoldsAfterARestart) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5};
  });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo);
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo) << "still not durable";
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kMiss);
}

TEST(EngineDeleteTest, ADeleteWaitsForTheWriteOfAnImageThatWasReplacedMeanwhile) {
  RigOptions options = Tiered();
  options.main_bytes = 1 << 20;
  Rig rig(options);
  ASSERT_TRUE(rig.engine->BindLayout(2, rig.Bind(CodecKind::kRaw)).ok());
  ASSERT_TRUE(rig.engine->RegisterRegions({1}, 2, 2, rig.worker().Spec()).ok());
  rig.Put(9, PageOf(9), kWireFlagDurable);  // opens the first segment
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 0u : 200u};
  });
  const auto send = [&rig](RequestSpec spec) {
    const uint64_t id = rig.worker().Send(spec);
    for (int i = 0; i < 8; ++i) rig.Turn();
    return id;
  };
  RequestSpec put{
      .type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}, .flags = kWireFlagDurable};
  put.deadline_us = 100;
  const uint64_t hasty = send(put);
  rig.clock.Advance(100);
  const uint64_t better = send({.type = WireType::kPut,
                                .blocks = {{.digest = DigestNumber(1)}},
                                .layout = 2,
                                .region_set = 2});
  EXPECT_EQ(rig.worker().Answer(hasty).result, BlockResult::kNotDurable);
  EXPECT_EQ(rig.worker().Answer(better).result, BlockResult::kOk);
  const uint64_t erase = send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(1)}}});
  EXPECT_FALSE(rig.worker().Answered(erase)) << "the older image may still come back";
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(erase).result, BlockResult::kOk);
  const MemDevice::Survives everything = [](const MemDevice::Write&, uint64_t) { return true; };
  rig.Restart(&everything);
  ExpectMiss(rig, 1);
  ExpectHit(rig, 9, Tier::kNvme);
}

TEST(EngineDeleteTest, AFlushOfATenantDoesNotHideThatADeleteFailed) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5};
  });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  absl::Status status;
  rig.engine->Flush({.tenant = "t"}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "the page is still on the disk";
  rig.engine->Flush({}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_TRUE(status.ok()) << status;
  rig.engine->Flush({.tenant = "t"}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_TRUE(status.ok()) << status;
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
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
