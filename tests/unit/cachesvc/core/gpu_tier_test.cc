// The HBM tier: pages that move to DRAM and back, what is pinned, durable or drained there, and
// what a GPU demotes.
#include "tests/unit/cachesvc/core/gpu_fixture.h"

namespace crumb::testing {
namespace {

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

}  // namespace
}  // namespace crumb::testing
