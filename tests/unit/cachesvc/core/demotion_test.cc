// Demotion under way: pins, faults, deletes, durable pages, and a pool without room.
#include "cachesvc/core/page_job.h"
#include "tests/unit/cachesvc/core/tiered.h"
#include "tests/unit/cachesvc/core/windowed.h"

namespace crumb::testing {
namespace {

RigOptions AtOnce() {
  RigOptions options;
  return options;
}

TEST(EngineDemotionTest, ADemotedPageEqualsOneEncodedAtOnceByteForByte) {
  RigOptions idle = Windowed();
  idle.fresh_idle_us = 1;
  for (const uint16_t tokens : {uint16_t{0}, uint16_t{5}}) {
    for (const bool fits : {true, false}) {
      Rig demoting(idle), at_once(AtOnce());
      std::vector<uint8_t> page = PageOf(3);
      // Rows past the count are zero in a stored raw page; the sample codec looks at all of them.
      for (size_t i = 0; i < page.size() && tokens > 0; ++i) {
        if (i / 256 % kTokens >= tokens) page[i] = 0;
      }
      if (!fits) page[0] = kNoFitMark;
      for (Rig* rig : {&demoting, &at_once}) {
        rig->worker().Fill(0, page);
        ASSERT_EQ(rig->Ask({.type = WireType::kPut,
                            .blocks = {{.digest = DigestNumber(3),
                                        .parent = DigestNumber(2),
                                        .token_start = 64,
                                        .token_count = tokens}}})
                      .result,
                  BlockResult::kOk);
      }
      EXPECT_EQ(demoting.Lookup(3).precision, Precision::kRaw);
      demoting.clock.Advance(1);
      demoting.Settle();
      EXPECT_NE(demoting.Lookup(3).precision, Precision::kRaw);
      EXPECT_EQ(StoredPage(demoting, 3), StoredPage(at_once, 3)) << tokens << fits;
      EXPECT_EQ(demoting.engine->stats().ladder_steps, at_once.engine->stats().ladder_steps);
      EXPECT_EQ(demoting.engine->stats().encode_pages, 1u);
    }
  }
}

TEST(EngineDemotionTest, AGetUnderWayKeepsTheRawPageItFound) {
  RigOptions options = Windowed();
  options.fresh_idle_us = 1000;
  Rig rig(options);
  PutChain(rig, 10, 2);
  rig.wire->hold = true;
  const uint64_t get = rig.worker().Send(
      {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(11), .slot = 1}}});
  for (int i = 0; i < 20; ++i) rig.Turn();
  rig.clock.Advance(1000);
  for (int i = 0; i < 20; ++i) rig.Turn();
  EXPECT_EQ(rig.engine->stats().pages[3], 1u) << "demoted while the get has the old slot";
  EXPECT_EQ(rig.engine->stats().fresh_used_bytes, kRawSlot);
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(get).precision, Precision::kRaw);
  EXPECT_EQ(rig.worker().Read(1), PageOf(11));
  EXPECT_EQ(rig.Lookup(11).precision, Precision::kInt2);
  EXPECT_EQ(rig.engine->stats().fresh_used_bytes, 0u);
  rig.ExpectAtRest();
}

TEST(EngineDemotionTest, AClientPinMovesToTheNewSlot) {
  Rig rig(Windowed());
  PutChain(rig, 10, 3);
  rig.engine->Pin({.layout_handle = kLayout,
                   .session = rig.worker().session,
                   .digests = {DigestNumber(11)},
                   .ttl_us = 1'000'000});
  PutAt(rig, 10, 3);
  EXPECT_EQ(rig.Lookup(11).precision, Precision::kInt2);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 1u);
  EXPECT_EQ(rig.engine->stats().fresh_used_bytes, 2 * kRawSlot);
  rig.clock.Advance(1'000'000);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
}

TEST(EngineDemotionTest, ARawPageThatRottedIsForgottenAndCounted) {
  Rig rig(Windowed());
  PutChain(rig, 10, 3);
  const std::vector<uint8_t> page = PageOf(11);
  const MutableBytes arena = rig.pool->arena();
  const auto at = std::search(arena.begin(), arena.end(), page.begin(), page.begin() + 64);
  ASSERT_NE(at, arena.end());
  *at = static_cast<uint8_t>(*at ^ 1);
  PutAt(rig, 10, 3);
  EXPECT_EQ(Precisions(rig, 10, 4), "r.rr");
  EXPECT_EQ(rig.engine->stats().checksum_failures_dram, 1u);
  EXPECT_EQ(rig.engine->stats().demotion_failures, 1u);
  rig.ExpectAtRest();
}

TEST(EngineDemotionTest, DeleteFlushAndASecondPutMeetADemotionUnderWay) {
  for (int what = 0; what < 3; ++what) {
    Rig rig(Windowed());
    PutChain(rig, 10, 3);
    rig.queue.steps = 0;  // no job ends
    rig.worker().Fill(0, PageOf(13));
    const uint64_t put = rig.worker().Send({.type = WireType::kPut,
                                            .blocks = {{.digest = DigestNumber(13),
                                                        .parent = DigestNumber(12),
                                                        .token_start = 3 * kTokens}}});
    for (int i = 0; i < 5; ++i) rig.Turn();
    rig.queue.steps = 1;  // the put's own
    rig.Turn();
    rig.queue.steps = 0;
    for (int i = 0; i < 5; ++i) rig.Turn();
    EXPECT_TRUE(rig.worker().Answered(put));
    EXPECT_EQ(rig.engine->stats().demotions_in_flight, 1u);
    bool flushed = false;
    if (what == 0)
      rig.worker().Send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(11)}}});
    if (what == 1) rig.engine->Flush({}, [&](const absl::Status&) { flushed = true; });
    for (int i = 0; i < 5; ++i) rig.Turn();
    rig.queue.steps = 64;
    rig.Settle();
    EXPECT_EQ(rig.Lookup(11).result, what == 2 ? BlockResult::kOk : BlockResult::kMiss);
    EXPECT_EQ(rig.engine->stats().demotions_in_flight, 0u);
    if (what != 1) PutAt(rig, 10, 1);
    rig.ExpectAtRest();
  }
}

TEST(EngineDemotionTest, WhereGetsHoldTheWholeShareAPageIsEncodedAtOnce) {
  RigOptions options = Windowed();
  options.fresh_percent = 10;  // one slab, of 5 raw slots
  Rig rig(options);
  for (uint64_t key = 1; key <= 5; ++key) rig.PutChained(key, 0, 64);
  // Gets that never end hold all of them.
  rig.wire->hold = true;
  for (uint64_t key = 1; key <= 5; ++key) {
    rig.worker().Send(
        {.type = WireType::kGet,
         .blocks = {{.digest = DigestNumber(key), .slot = static_cast<uint32_t>(key)}}});
  }
  for (int i = 0; i < 20; ++i) rig.Turn();
  rig.worker().Fill(0, PageOf(6));
  const uint64_t put = rig.worker().Send(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(6), .token_start = 64}}});
  for (int i = 0; i < 100; ++i) {  // longer than a put waits for others' slots
    rig.clock.Advance(1000);
    rig.Turn();
  }
  rig.wire->hold = false;
  rig.Settle();
  ASSERT_TRUE(rig.worker().Answered(put));
  EXPECT_EQ(rig.Lookup(6).result, BlockResult::kOk);
  EXPECT_EQ(rig.Lookup(6).precision, Precision::kInt2);
  rig.ExpectAtRest();
}

TEST(EngineDemotionTest, AFullDeviceQueueDelaysADemotionAndLosesNothing) {
  Rig rig(Windowed());
  rig.queue.jobs_max = 1;
  rig.queue.steps = 1;
  PutChain(rig, 10, 12);
  EXPECT_EQ(Precisions(rig, 10, 12), "r222222222rr");
}

TEST(EngineDemotionTest, ADurableFreshPageIsWrittenAgainBeforeItIsSwapped) {
  Rig rig(Windowed(16 << 20));
  for (uint64_t at = 0; at < 6; ++at) {
    ASSERT_EQ(PutAt(rig, 10, at, kWireFlagDurable).result, BlockResult::kOk);
  }
  EXPECT_EQ(Precisions(rig, 10, 6), "r222rr");
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(Precisions(rig, 10, 6), "r222rr");
  for (uint64_t at = 0; at < 6; ++at) {
    std::vector<uint8_t> got;
    ASSERT_EQ(rig.Get(10 + at, &got).result, BlockResult::kOk);
    const bool packed = at >= 1 && at <= 3;
    EXPECT_EQ(got, packed ? AfterLoss(PageOf(10 + at), 4) : PageOf(10 + at)) << at;
  }
}

TEST(EngineDemotionTest, ADurablePromiseHoldsAtEveryMomentOfADemotion) {
  // The power goes out after 0, 1, 2, ... turns of a demotion whose writes are slow.
  for (int turns = 0; turns < 60; ++turns) {
    Rig rig(Windowed(16 << 20));
    for (uint64_t at = 0; at < 3; ++at) PutAt(rig, 10, at, kWireFlagDurable);
    rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 7}; });
    rig.worker().Fill(0, PageOf(13));
    rig.worker().Send({.type = WireType::kPut,
                       .blocks = {{.digest = DigestNumber(13),
                                   .parent = DigestNumber(12),
                                   .token_start = 3 * kTokens}}});
    for (int i = 0; i < turns; ++i) rig.Turn();
    rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
    rig.Restart(&kNothingSurvives);
    std::vector<uint8_t> got;
    const WireBlockReply reply = rig.Get(11, &got);
    ASSERT_EQ(reply.result, BlockResult::kOk) << turns;
    EXPECT_EQ(got, reply.precision == Precision::kRaw ? PageOf(11) : AfterLoss(PageOf(11), 4));
  }
}

TEST(EngineDemotionTest, AWriteThatFailsLeavesTheRawRecordAndNothingElse) {
  Rig rig(Windowed(16 << 20));
  for (uint64_t at = 0; at < 3; ++at) PutAt(rig, 10, at, kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 28};
  });
  PutAt(rig, 10, 3);
  EXPECT_EQ(rig.engine->stats().demotion_failures, 1u);
  std::vector<uint8_t> got;
  WireBlockReply reply = rig.Get(11, &got);
  EXPECT_EQ(reply.tier, Tier::kNvme);
  EXPECT_EQ(got, PageOf(11));
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  rig.Restart(&kNothingSurvives);
  ASSERT_EQ(rig.Get(11, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, PageOf(11));
}

TEST(EngineDemotionTest, AnEvictedFreshPageIsDemotedAndOnlyFinalPagesGoToDisk) {
  RigOptions options = Windowed(32 << 20);
  options.main_bytes = 256 << 10;
  options.staging_bytes = 768 << 10;
  options.fresh_percent = 90;
  Rig rig(options);
  for (uint64_t chain = 0; chain < 20; ++chain) PutChain(rig, 100 * (chain + 1), 4);
  // A page that nobody can pack wants the room of fresh ones.
  for (uint64_t key = 1; key < 30; ++key) rig.Put(key, PageOf(key));
  rig.Settle();
  rig.ExpectAtRest();
  const EngineStats stats = rig.engine->stats();
  EXPECT_GT(stats.evicted_to_nvme, 0u);
  for (uint64_t chain = 0; chain < 20; ++chain) {
    for (uint64_t at = 1; at < 4; ++at) {
      const WireBlockReply reply = rig.Lookup(100 * (chain + 1) + at);
      if (reply.result != BlockResult::kOk || reply.tier != Tier::kNvme) continue;
      EXPECT_EQ(reply.precision, Precision::kInt2) << chain << " " << at;
    }
  }
}

TEST(EngineDemotionTest, DrainDemotesAndThenOffers) {
  Rig rig(Windowed(16 << 20));
  PutChain(rig, 10, 4);
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&] { drained = true; });
  rig.Settle();
  EXPECT_TRUE(drained);
  EXPECT_EQ(Demotions(rig, DemotionReason::kDrain), 2u);
  rig.Restart();
  EXPECT_EQ(Precisions(rig, 10, 4), "r222");
}

TEST(EngineDemotionDeathTest, NothingIsEncodedFromALossyPage) {
  Rig rig(AtOnce());
  rig.Put(1, PageOf(1));
  std::vector<uint8_t> lossy = StoredPage(rig, 1);
  lossy.resize(8 << 10);
  std::vector<uint8_t> out(8 << 10);
  const LayoutBinding binding = rig.Bind(CodecKind::kCrumbInt2);
  core::WorkerScratch scratch(1);
  core::PageJob job;
  job.kind = core::PageJobKind::kDemote;
  job.codec = binding.ladder[0][0].get();
  job.scratch = &scratch;
  job.source = absl::MakeSpan(lossy);
  job.page = absl::MakeSpan(out);
  const PageHeader header = LoadHeader(lossy);
  job.header.key = header.key;
  job.header.raw_bytes = header.payload_bytes;
  EXPECT_DEATH(core::RunPageJob(&job, 0), "kRaw");
}

}  // namespace
}  // namespace crumb::testing
