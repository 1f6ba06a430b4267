// Pages straight out of and into workers' GPU memory: the same promises as over DRAM alone,
// whatever a GPU does meanwhile.
#include <cstddef>
#include <map>

#include "cachesvc/base/rng.h"
#include "tests/unit/cachesvc/core/gpu_fixture.h"

namespace crumb::testing {
namespace {

TEST_F(EngineGpuTest, PacksIntoHbmAndUnpacksFromIt) {
  Start();
  const WireBlockReply put = Put(1);
  EXPECT_EQ(put.result, BlockResult::kOk);
  EXPECT_EQ(put.tier, Tier::kHbm);
  EXPECT_EQ(put.precision, Precision::kInt2);
  EXPECT_EQ(stats().hbm_pages, 1u);
  EXPECT_EQ(stats().pool_pages, 0u);
  EXPECT_EQ(rig_->Lookup(1).tier, Tier::kHbm);
  ExpectPage(1, Tier::kHbm);
  EXPECT_EQ(stats().gpu_encode_pages, 1u);
  EXPECT_EQ(stats().gpu_decode_pages, 1u);
  EXPECT_EQ(Put(1).result, BlockResult::kExists);
  rig_->ExpectAtRest();
}

// A page on NVMe alone that gets no slot is unpacked by the GPU out of staging, where a buffer for
// what the host would unpack lies beside it, with whatever was there before.
TEST_F(EngineGpuTest, APageThatStaysOnNvmeIsServedToAGpuInEveryForm) {
  RigOptions options;
  options.main_bytes = 64 << 10;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = 8 << 20;
  options.nvme_promotion = NvmePromotion::kSecond;
  Start(options);
  std::vector<uint8_t> forms[2];
  for (uint64_t key = 1; key <= 60; ++key) {
    rig_->worker(1).Fill(0, PageOf(key));
    ASSERT_EQ(rig_->Ask(Spec(WireType::kPut, key), 1).result, BlockResult::kOk);
  }
  for (uint64_t key = 1; key <= 8; ++key) {
    ASSERT_EQ(rig_->Lookup(key).tier, Tier::kNvme) << key;
    ExpectPage(key, Tier::kNvme);
  }
  EXPECT_EQ(stats().promotions_deferred, 8u);
  EXPECT_GT(stats().gpu_decode_pages, 0u);
  size_t at = 0;
  for (const PageForm form : {PageForm::kPacked, PageForm::kPage}) {
    RequestSpec spec = Spec(WireType::kGet, 20 + at, 1);
    spec.form = form;
    const WireBlockReply cold = rig_->Ask(spec);
    ASSERT_EQ(cold.result, BlockResult::kOk);
    EXPECT_EQ(cold.tier, Tier::kNvme);
    forms[0] = rig_->worker().Read(1, cold.value_bytes);
    rig_->Ask(spec, 1);  // the second raises it
    EXPECT_EQ(rig_->Ask(spec, 1).tier, Tier::kDram);
    forms[1] = rig_->worker(1).Read(1, cold.value_bytes);
    EXPECT_EQ(forms[0].size(), forms[1].size());
    const size_t skip = form == PageForm::kPage ? offsetof(PageHeader, segment) : 0;
    EXPECT_TRUE(std::equal(forms[0].begin(), forms[0].begin() + static_cast<ptrdiff_t>(skip),
                           forms[1].begin()));
    const size_t payload = form == PageForm::kPage ? kPageHeaderBytes : 0;
    EXPECT_TRUE(std::equal(forms[0].begin() + static_cast<ptrdiff_t>(payload), forms[0].end(),
                           forms[1].begin() + static_cast<ptrdiff_t>(payload)));
    ++at;
  }
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, NothingIsSeenBeforeTheGpuIsDone) {
  Start();
  rig_->worker().Fill(0, PageOf(1));
  gpu_.mood.hold = true;
  const uint64_t put = Sent(WireType::kPut, 1);
  EXPECT_FALSE(rig_->worker().Answered(put));
  EXPECT_EQ(rig_->Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(gpu_.held, 1);
  gpu_.mood.hold = false;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kOk);
  gpu_.mood.hold = true;
  const uint64_t get = Sent(WireType::kGet, 1, 1);
  EXPECT_FALSE(rig_->worker().Answered(get));
  gpu_.mood.hold = false;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kOk);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, NothingIsTouchedBeforeTheWorkersGpuHasComeSoFar) {
  Start();
  rig_->worker().Fill(0, PageOf(1));
  RequestSpec put = Spec(WireType::kPut, 1);
  put.gpu_ticket = 5;
  gpu_.word = 4;
  const uint64_t first = rig_->worker().Send(put);
  rig_->Settle();
  EXPECT_FALSE(rig_->worker().Answered(first));
  EXPECT_EQ(stats().gpu_encode_pages, 0u);
  // Whoever waits for nothing goes on.
  rig_->worker().Fill(2, PageOf(2));
  EXPECT_EQ(rig_->Ask(Spec(WireType::kPut, 2, 2)).result, BlockResult::kOk);
  EXPECT_FALSE(rig_->worker().Answered(first));
  gpu_.word = 5;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(first).result, BlockResult::kOk);
  ExpectPage(1, Tier::kHbm);
  RequestSpec get = Spec(WireType::kGet, 2, 3);
  get.gpu_ticket = 6;
  get.deadline_us = 1000;
  const uint64_t late = rig_->worker().Send(get);
  rig_->Settle();
  EXPECT_FALSE(rig_->worker().Answered(late));
  rig_->clock.Advance(2000);
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(late).result, BlockResult::kTimeout);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, AWorkerThatDiesBeforeItsGpuCameSoFarHoldsNobodyUp) {
  Start();
  RequestSpec put = Spec(WireType::kPut, 1);
  put.gpu_ticket = 5;
  rig_->worker().Send(put);
  rig_->Settle();
  EXPECT_EQ(gpu_.held, 1);
  rig_->transport->KillPeer(rig_->worker().peer);
  rig_->Settle();
  EXPECT_EQ(gpu_.held, 0);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, AHostWorkerGetsThePageOverDram) {
  Start();
  Put(1);
  ExpectPage(1, Tier::kDram, 1);
  EXPECT_EQ(stats().lowered, 1u);
  EXPECT_EQ(stats().hbm_pages, 0u);
  ExpectPage(1, Tier::kDram, 1);
  rig_->ExpectAtRest();
}

// A page has no checksum while it lies in HBM; it gets one on its way down, and that is looked at.
TEST_F(EngineGpuTest, AByteThatFlipsInDramIsAMissForGpusToo) {
  Start();
  Put(1);
  ExpectPage(1, Tier::kDram, 1);  // lowered
  rig_->pool->arena()[kPageHeaderBytes + 50] ^= 1;
  EXPECT_EQ(Get(1).result, BlockResult::kMiss);
  EXPECT_EQ(stats().checksum_failures_dram, 1u);
  EXPECT_EQ(rig_->Lookup(1).result, BlockResult::kMiss);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, PagesOfDramAreUnpackedThroughTheStageWhileThereIsRoom) {
  RigOptions options;
  options.gpu_stage_bytes = 2 * kPageAlignment;  // two pages at once
  Start(options);
  for (uint64_t key = 1; key <= 4; ++key) {
    rig_->worker(1).Fill(0, PageOf(key));
    ASSERT_EQ(rig_->Ask(Spec(WireType::kPut, key), 1).result, BlockResult::kOk);
  }
  ASSERT_EQ(stats().hbm_pages, 0u);
  gpu_.mood.hold = true;
  std::vector<uint64_t> gets;
  for (uint32_t i = 0; i < 3; ++i) gets.push_back(Sent(WireType::kGet, 1 + i, i));
  EXPECT_EQ(stats().gpu_stage_used_bytes, 2 * kPageAlignment);
  gpu_.mood.hold = false;
  rig_->Settle();
  for (uint32_t i = 0; i < 3; ++i) {
    const WireBlockReply reply = rig_->worker().Answer(gets[i]);
    ASSERT_EQ(reply.result, BlockResult::kOk);
    EXPECT_EQ(reply.tier, Tier::kDram);
    EXPECT_EQ(rig_->worker().Read(i, reply.value_bytes), AfterLoss(PageOf(1 + i), 4));
  }
  EXPECT_EQ(stats().gpu_decode_pages, 3u);
  EXPECT_EQ(stats().gpu_staged, 2u);
  rig_->ExpectAtRest();
  // What is cut off in between leaves nothing behind.
  gpu_.mood.hold = true;
  Sent(WireType::kGet, 4, 1);
  EXPECT_EQ(stats().gpu_stage_used_bytes, kPageAlignment);
  rig_->transport->KillPeer(rig_->worker().peer);
  gpu_.gone = true;
  gpu_.mood.hold = false;
  rig_->Settle();
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, BadRowsAndPagesThatDoNotFitAreJudgedAsEver) {
  Start();
  std::vector<uint8_t> page = PageOf(1);
  page[0] = kNonFiniteMark;
  EXPECT_EQ(rig_->Put(1, page).result, BlockResult::kNonFinite);
  page[0] = kNoFitMark;
  const WireBlockReply put = rig_->Put(2, page);
  EXPECT_EQ(put.result, BlockResult::kOk);
  EXPECT_EQ(put.precision, Precision::kInt4);
  EXPECT_EQ(put.tier, Tier::kHbm);
  ASSERT_EQ(Get(2).result, BlockResult::kOk);
  EXPECT_EQ(page_, AfterLoss(page, 2));
  EXPECT_GT(stats().ladder_steps, 0u);
  EXPECT_EQ(stats().hbm_pages, 1u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, NonFinitePagesAreKeptRawInDram) {
  RigOptions options;
  options.keep_non_finite_raw = true;
  Start(options);
  std::vector<uint8_t> page = PageOf(1);
  page[0] = kNonFiniteMark;
  page[1] = 0x7f;
  const WireBlockReply put = rig_->Put(1, page);
  EXPECT_EQ(put.result, BlockResult::kOk);
  EXPECT_EQ(put.precision, Precision::kRaw);
  EXPECT_EQ(put.tier, Tier::kDram);
  ASSERT_EQ(Get(1).result, BlockResult::kOk);
  EXPECT_EQ(page_, page);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, RawLayoutsGoThroughDram) {
  RigOptions options;
  options.codec = CodecKind::kRaw;
  Start(options);
  EXPECT_EQ(Put(1).tier, Tier::kDram);
  ASSERT_EQ(Get(1).result, BlockResult::kOk);
  EXPECT_EQ(page_, PageOf(1));
  EXPECT_EQ(stats().gpu_copies, 2u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, PackedAndWholePagesAreCopied) {
  Start();
  Put(1);
  for (const PageForm form : {PageForm::kPacked, PageForm::kPage}) {
    RequestSpec get = Spec(WireType::kGet, 1, 1);
    get.form = form;
    const WireBlockReply got = rig_->Ask(get);
    ASSERT_EQ(got.result, BlockResult::kOk);
    EXPECT_EQ(got.tier, form == PageForm::kPacked ? Tier::kHbm : Tier::kDram);
    RequestSpec put = Spec(WireType::kPut, form == PageForm::kPacked ? 2 : 1, 1);
    put.form = form;
    put.blocks[0].value_bytes = got.value_bytes;
    if (form == PageForm::kPage) rig_->Delete(1);
    EXPECT_EQ(rig_->Ask(put).result, BlockResult::kOk);
  }
  ASSERT_EQ(Get(2).result, BlockResult::kOk);
  EXPECT_EQ(page_, AfterLoss(PageOf(1), 4));
  ASSERT_EQ(Get(1).result, BlockResult::kOk);
  EXPECT_EQ(page_, AfterLoss(PageOf(1), 4));
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, ADeadlineWaitsForTheGpu) {
  Start();
  rig_->worker().Fill(0, PageOf(1));
  gpu_.mood.hold = true;
  RequestSpec spec = Spec(WireType::kPut, 1);
  spec.deadline_us = 1000;
  const uint64_t put = rig_->worker().Send(spec);
  rig_->Settle();
  rig_->clock.Advance(2000);
  rig_->Settle();
  EXPECT_FALSE(rig_->worker().Answered(put));
  gpu_.mood.hold = false;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kTimeout);
  EXPECT_EQ(rig_->Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(stats().hbm_pages, 0u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, AWorkerThatDiesLeavesNothing) {
  Start();
  Put(2);
  rig_->worker().Fill(0, PageOf(1));
  gpu_.mood.hold = true;
  Sent(WireType::kPut, 1);
  Sent(WireType::kGet, 2, 1);
  EXPECT_EQ(gpu_.held, 2);
  rig_->transport->KillPeer(rig_->worker().peer);
  gpu_.gone = true;
  rig_->Settle();
  EXPECT_EQ(gpu_.held, 2);
  gpu_.mood.hold = false;
  rig_->Settle();
  gpu_.gone = false;
  EXPECT_EQ(gpu_.held, 0);
  RequestSpec lookup = Spec(WireType::kLookup, 1);
  EXPECT_EQ(rig_->Ask(lookup, 1).result, BlockResult::kMiss);
  ExpectPage(2, Tier::kDram, 1);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, ALostGpuFailsWhatIsInFlightAndNothingElse) {
  Start();
  Put(2);
  rig_->worker().Fill(0, PageOf(1));
  gpu_.mood.hold = true;
  const uint64_t put = Sent(WireType::kPut, 1);
  const uint64_t get = Sent(WireType::kGet, 2, 1);
  gpu_.mood.lost = true;
  rig_->Settle();
  EXPECT_EQ(rig_->worker().Answer(put).result, BlockResult::kUnavailable);
  EXPECT_EQ(rig_->worker().Answer(get).result, BlockResult::kUnavailable);
  EXPECT_EQ(Get(2).result, BlockResult::kUnavailable);
  EXPECT_EQ(Put(3).result, BlockResult::kUnavailable);
  EXPECT_EQ(Get(2, 1).result, BlockResult::kMiss);  // cannot be lowered any more
  EXPECT_GT(stats().gpu_failures, 0u);
  rig_->worker(1).Fill(0, PageOf(9));
  EXPECT_EQ(rig_->Ask(Spec(WireType::kPut, 9), 1).result, BlockResult::kOk);
  ExpectPage(9, Tier::kDram, 1);
  rig_->ExpectAtRest();
}

// Whatever is asked in whatever order, with a GPU that now and then holds everything back: what is
// got is what was put, and in the end nothing is held.
TEST_F(EngineGpuTest, RandomWorkNeverLies) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    RigOptions options;
    options.hbm_bytes = 1 << 20;
    options.main_bytes = 768 << 10;
    options.nvme_bytes = seed % 2 == 0 ? 8 << 20 : 0;
    Start(options);
    Rng rng(seed);
    std::map<uint64_t, std::pair<size_t, uint64_t>> gets;  // request -> worker, key
    uint64_t hits = 0;
    const auto check = [&] {
      for (auto it = gets.begin(); it != gets.end();) {
        const auto [worker, key] = it->second;
        const uint64_t id = it->first >> 1;
        if (!rig_->worker(worker).Answered(id)) {
          ++it;
          continue;
        }
        if (rig_->worker(worker).Answer(id).result == BlockResult::kOk) {
          const auto slot = static_cast<uint32_t>(id % 32 + 16);
          ASSERT_EQ(rig_->worker(worker).Read(slot), AfterLoss(PageOf(key), 4)) << key;
          ++hits;
        }
        it = gets.erase(it);
      }
    };
    std::array<uint64_t, 2> next = {1, 1};
    for (int step = 0; step < 4000; ++step) {
      const size_t worker = rng.Below(3) == 0 ? 1 : 0;
      const uint64_t key = 1 + rng.Below(600);
      const uint64_t id = next[worker]++;
      RequestSpec spec = Spec(WireType::kGet, key, static_cast<uint32_t>(id % 32 + 16));
      spec.request_id = id;
      const uint64_t what = rng.Below(10);
      if (what < 4) {
        spec.type = WireType::kPut;
        spec.blocks[0].slot = static_cast<uint32_t>(id % 16);
        if (rng.Below(8) == 0) spec.flags = kWireFlagDurable;
        rig_->worker(worker).Fill(spec.blocks[0].slot, PageOf(key));
      } else if (what == 4) {
        spec.type = WireType::kDelete;
      } else {
        gets[id << 1 | worker] = {worker, key};
      }
      rig_->worker(worker).Send(spec);
      if (rng.Below(50) == 0) gpu_.mood.hold = !gpu_.mood.hold;
      // A slot is used again after 16 requests: their answers must be there by then.
      if (step % 12 == 11) {
        gpu_.mood.hold = false;
        rig_->Settle();
      } else {
        rig_->Turn();
      }
      check();
    }
    gpu_.mood.hold = false;
    rig_->Settle();
    check();
    EXPECT_TRUE(gets.empty());
    EXPECT_GT(hits, 100u);
    EXPECT_GT(stats().lowered, 0u);
    rig_->ExpectAtRest();
  }
}

}  // namespace
}  // namespace crumb::testing
