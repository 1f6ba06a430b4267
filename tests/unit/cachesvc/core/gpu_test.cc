// Pages straight out of and into workers' GPU memory, and the HBM tier: the same promises as over
// DRAM alone, whatever a GPU does meanwhile.
#include <algorithm>
#include <cstddef>
#include <map>

#include "cachesvc/base/rng.h"
#include "tests/unit/cachesvc/core/windowed.h"

namespace crumb::testing {
namespace {

class EngineGpuTest : public ::testing::Test {
 protected:
  // Worker 0 lends GPU memory, worker 1 host memory.
  void Start(RigOptions options = {}) {
    if (options.hbm_bytes == 0) options.hbm_bytes = 2 << 20;
    options.gpu = &gpu_;
    gpu_.on = true;
    rig_ = std::make_unique<Rig>(options);
    gpu_.on = false;
    rig_->AddWorker({.session = 2});
  }
  RequestSpec Spec(WireType type, uint64_t key, uint32_t slot = 0) {
    return {.type = type, .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
  }
  WireBlockReply Put(uint64_t key, uint16_t flags = 0) {
    return rig_->Put(key, PageOf(key), flags);
  }
  // Into the worker's memory; the reply's checksum is of bytes that the host saw, or 0.
  WireBlockReply Get(uint64_t key, size_t worker = 0) {
    RequestSpec spec = Spec(WireType::kGet, key, 1);
    rig_->worker(worker).Fill(1, std::vector<uint8_t>(kRawBytes, 0xee));
    const WireBlockReply reply = rig_->Ask(spec, worker);
    if (reply.result == BlockResult::kOk) page_ = rig_->worker(worker).Read(1, reply.value_bytes);
    return reply;
  }
  void ExpectPage(uint64_t key, Tier tier, size_t worker = 0) {
    const WireBlockReply reply = Get(key, worker);
    ASSERT_EQ(reply.result, BlockResult::kOk) << key;
    EXPECT_EQ(reply.tier, tier) << key << ": " << ToString(reply.tier);
    EXPECT_EQ(page_, AfterLoss(PageOf(key), 4)) << key;
  }
  uint64_t Sent(WireType type, uint64_t key, uint32_t slot = 0) {
    const uint64_t id = rig_->worker().Send(Spec(type, key, slot));
    rig_->Settle();
    return id;
  }
  // A chain of pages 100 to 103, put by the GPU's worker but for the last: page 101 is being packed
  // by the GPU, which holds it.
  void HoldADemotion() {
    PutChain(*rig_, 100, 3);
    gpu_.mood.hold = true;
    rig_->worker(1).Fill(0, PageOf(103));
    RequestSpec put = Spec(WireType::kPut, 103);
    put.blocks[0].parent = DigestNumber(102);
    put.blocks[0].token_start = 3 * kTokens;
    EXPECT_EQ(rig_->Ask(put, 1).result, BlockResult::kOk);
  }
  EngineStats stats() const { return rig_->engine->stats(); }

  FakeGpu gpu_;
  std::unique_ptr<Rig> rig_;
  std::vector<uint8_t> page_;
};

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

TEST_F(EngineGpuTest, TheSecondGetFromDramRaisesIt) {
  Start();
  Put(1);
  ExpectPage(1, Tier::kDram, 1);  // lowered for the host's worker
  ExpectPage(1, Tier::kDram);
  EXPECT_EQ(stats().raised, 0u);
  ExpectPage(1, Tier::kDram);
  rig_->Settle();
  EXPECT_EQ(stats().raised, 1u);
  ExpectPage(1, Tier::kHbm);
  EXPECT_EQ(stats().pool_pages, 0u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, AFullHbmGivesItsColdestToDram) {
  RigOptions options;
  options.hbm_bytes = 1 << 20;
  Start(options);
  for (uint64_t key = 1; key <= 400; ++key) {
    ASSERT_EQ(Put(key).result, BlockResult::kOk);
    rig_->Settle();
  }
  EXPECT_GT(stats().lowered, 100u);
  EXPECT_GT(stats().hbm_pages, 150u);
  int found = 0;
  for (uint64_t key = 1; key <= 400; ++key) {
    const WireBlockReply reply = Get(key);
    if (reply.result == BlockResult::kMiss) continue;
    ++found;
    ASSERT_EQ(page_, AfterLoss(PageOf(key), 4)) << key;
  }
  EXPECT_GT(found, 350);
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

TEST_F(EngineGpuTest, WhatChangesUnderAMoveStaysChanged) {
  Start();
  Put(1);
  Put(2);
  Put(3);
  gpu_.mood.hold = true;
  for (uint64_t key = 1; key <= 3; ++key) rig_->worker(1).Send(Spec(WireType::kGet, key, 1));
  rig_->Settle();
  EXPECT_EQ(stats().moves_in_flight, 3u);
  EXPECT_EQ(rig_->Delete(1).result, BlockResult::kOk);
  absl::Status flushed = absl::UnknownError("not yet");
  rig_->engine->Flush({.tenant = "t"}, [&flushed](absl::Status status) { flushed = status; });
  rig_->Settle();
  gpu_.mood.hold = false;
  rig_->Settle();
  EXPECT_TRUE(flushed.ok());
  for (uint64_t key = 1; key <= 3; ++key) EXPECT_EQ(Get(key).result, BlockResult::kMiss);
  EXPECT_EQ(stats().hbm_pages + stats().pool_pages, 0u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, PinnedPagesStayWhereTheyAre) {
  RigOptions options;
  options.hbm_bytes = 1 << 20;
  Start(options);
  Put(1);
  EXPECT_EQ(rig_->engine->Pin({.layout_handle = kLayout,
                               .session = SessionId{1},
                               .digests = {DigestNumber(1)},
                               .ttl_us = 1'000'000})[0],
            BlockResult::kOk);
  for (uint64_t key = 2; key <= 600; ++key) ASSERT_EQ(Put(key).result, BlockResult::kOk);
  ExpectPage(1, Tier::kHbm);
  rig_->engine->Pin(
      {.layout_handle = kLayout, .session = SessionId{1}, .digests = {DigestNumber(1)}});
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, DurablePutsGoToDramAndDisk) {
  RigOptions options;
  options.nvme_bytes = 16 << 20;
  Start(options);
  EXPECT_EQ(Put(1, kWireFlagDurable).tier, Tier::kDram);
  Put(2);
  EXPECT_EQ(Put(2, kWireFlagDurable).result, BlockResult::kExists);  // lowered and written
  rig_->Settle();
  const MemDevice::Survives nothing = [](const MemDevice::Write&, uint64_t) { return false; };
  rig_->Restart(&nothing);
  for (uint64_t key = 1; key <= 2; ++key) {
    std::vector<uint8_t> page;
    ASSERT_EQ(rig_->Get(key, &page).result, BlockResult::kOk) << key;
    EXPECT_EQ(page, AfterLoss(PageOf(key), 4));
  }
}

TEST_F(EngineGpuTest, ADrainWritesWhatLivesInHbmAlone) {
  RigOptions options;
  options.nvme_bytes = 16 << 20;
  Start(options);
  for (uint64_t key = 1; key <= 100; ++key) Put(key);
  EXPECT_EQ(stats().hbm_pages, 100u);
  bool drained = false;
  rig_->engine->Drain(rig_->clock.now_us() + 10'000'000, [&drained] { drained = true; });
  rig_->Settle();
  EXPECT_TRUE(drained);
  rig_->Restart();
  for (uint64_t key = 1; key <= 100; ++key) {
    std::vector<uint8_t> page;
    ASSERT_EQ(rig_->Get(key, &page).result, BlockResult::kOk) << key;
    ASSERT_EQ(page, AfterLoss(PageOf(key), 4));
  }
}

TEST_F(EngineGpuTest, FreshPagesAreDemotedByAGpu) {
  RigOptions options = Windowed();
  Start(options);
  PutChain(*rig_, 100, 8);
  EXPECT_EQ(Precisions(*rig_, 100, 8), "r22222rr");
  EXPECT_EQ(stats().gpu_encode_pages, 5u);
  EXPECT_EQ(stats().encode_pages, 6u);  // and the sink, as it is
  for (uint64_t at = 0; at < 8; ++at) {
    ASSERT_EQ(Get(100 + at).result, BlockResult::kOk);
    const bool packed = at > 0 && at < 6;
    EXPECT_EQ(page_, packed ? AfterLoss(PageOf(100 + at), 4) : PageOf(100 + at)) << at;
    ASSERT_EQ(Get(100 + at, 1).result, BlockResult::kOk) << "verified on the way";
    EXPECT_EQ(page_, packed ? AfterLoss(PageOf(100 + at), 4) : PageOf(100 + at)) << at;
  }
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, ADemotionClimbsTheLadderOnTheGpuToo) {
  Start(Windowed());
  std::vector<uint8_t> page = PageOf(1);
  page[0] = kNoFitMark;
  for (uint32_t at = 0; at < 5; ++at) {
    rig_->worker().Fill(0, page);
    BlockSpec block{.digest = DigestNumber(10 + at), .token_start = at * kTokens};
    if (at > 0) block.parent = DigestNumber(10 + at - 1);
    ASSERT_EQ(rig_->Ask({.type = WireType::kPut, .blocks = {block}}).result, BlockResult::kOk);
  }
  EXPECT_EQ(Precisions(*rig_, 10, 5), "r44rr");
  ASSERT_EQ(Get(11).result, BlockResult::kOk);
  EXPECT_EQ(page_, AfterLoss(page, 2));
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, WhatIsDeletedWhileAGpuDemotesItStaysDeleted) {
  Start(Windowed());
  HoldADemotion();
  EXPECT_EQ(stats().demotions_in_flight, 1u);
  EXPECT_EQ(rig_->Delete(101).result, BlockResult::kOk);
  gpu_.mood.hold = false;
  rig_->Settle();
  EXPECT_EQ(Precisions(*rig_, 100, 4), "r.rr");
  EXPECT_EQ(stats().demotions_in_flight, 0u);
  rig_->ExpectAtRest();
}

TEST_F(EngineGpuTest, TheHostDemotesWhatALostGpuCannot) {
  Start(Windowed());
  HoldADemotion();
  gpu_.mood.lost = true;
  rig_->Settle();
  EXPECT_EQ(Precisions(*rig_, 100, 4), "r2rr");
  ASSERT_EQ(Get(101, 1).result, BlockResult::kOk);
  EXPECT_EQ(page_, AfterLoss(PageOf(101), 4));
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
