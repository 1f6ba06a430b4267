// Prefetch in the engine: what is raised, what is not, what it may cost others, how it ends.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

RequestSpec PrefetchOf(uint64_t first, uint64_t count) {
  RequestSpec spec{.type = WireType::kPrefetch};
  for (uint64_t key = first; key < first + count; ++key) {
    spec.blocks.push_back({.digest = DigestNumber(key)});
  }
  return spec;
}

std::vector<WireBlockReply> Prefetch(Rig& rig, uint64_t first, uint64_t count) {
  const uint64_t id = rig.worker().Send(PrefetchOf(first, count));
  rig.Settle();
  EXPECT_TRUE(rig.worker().Answered(id));
  return rig.worker().replies[id].blocks;
}

uint64_t InMemory(Rig& rig, uint64_t first, uint64_t count) {
  uint64_t found = 0;
  for (uint64_t key = first; key < first + count; ++key) {
    if (rig.Lookup(key).tier == Tier::kDram) ++found;
  }
  return found;
}

TEST(EnginePrefetchTest, AColdPageIsRaisedAndTheGetFindsItInMemory) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  const std::vector<WireBlockReply> replies = Prefetch(rig, 1, 1);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].result, BlockResult::kOk);
  EXPECT_EQ(replies[0].tier, Tier::kDram);
  ExpectHit(rig, 1, Tier::kDram);
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.promoted, 1u);
  EXPECT_EQ(stats.prefetches, 0u);
  EXPECT_EQ(stats.requests[static_cast<size_t>(EngineOp::kPrefetch)], 1u);
  rig.ExpectAtRest();
}

TEST(EnginePrefetchTest, AnswersSayWhereEachPageIs) {
  Rig rig(Tiered());
  rig.Put(2, PageOf(2));
  const std::vector<WireBlockReply> replies = Prefetch(rig, 1, 3);
  EXPECT_EQ(replies[0].result, BlockResult::kMiss);
  EXPECT_EQ(replies[0].tier, Tier::kNone);
  EXPECT_EQ(replies[1].result, BlockResult::kOk);
  EXPECT_EQ(replies[1].tier, Tier::kDram);
  EXPECT_EQ(replies[2].result, BlockResult::kMiss);
}

TEST(EnginePrefetchTest, WhatDoesNotFitStaysOnNvmeAndDisplacesNothingHotter) {
  Rig rig(Tiered());
  FillMemory(rig, 1);  // 1..16
  FillMemory(rig);     // pushes them out
  ASSERT_EQ(InMemory(rig, 1, kPages), 0u);
  const std::vector<WireBlockReply> replies = Prefetch(rig, 1, kPages);
  uint64_t raised = 0;
  for (const WireBlockReply& reply : replies) {
    const bool ok = reply.result == BlockResult::kOk;
    raised += ok ? 1 : 0;
    EXPECT_EQ(reply.result, ok ? BlockResult::kOk : BlockResult::kNoSpace);
    EXPECT_EQ(reply.tier, ok ? Tier::kDram : Tier::kNvme);
  }
  EXPECT_EQ(raised, kPages / 4);
  EXPECT_EQ(InMemory(rig, 1, kPages), raised);
  EXPECT_EQ(InMemory(rig, 1000, kPages), kPages - raised);
  EXPECT_EQ(rig.engine->stats().promotions_rejected, kPages - raised);
  // What was got is no longer held against its share.
  for (uint64_t key = 1; key <= raised; ++key) ExpectHit(rig, key, Tier::kDram);
  EXPECT_EQ(Prefetch(rig, raised + 1, 1)[0].result, BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EnginePrefetchTest, PinnedPagesAreNeverDisplaced) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  PinRequest pin{.layout_handle = kLayout,
                 .session = rig.worker().session,
                 .digests = {},
                 .ttl_us = 1'000'000'000};
  for (uint64_t key = 1000; key < 1000 + kPages; ++key) pin.digests.push_back(DigestNumber(key));
  rig.engine->Pin(pin);
  const WireBlockReply reply = Prefetch(rig, 1, 1)[0];
  EXPECT_EQ(reply.result, BlockResult::kNoSpace);
  EXPECT_EQ(reply.tier, Tier::kNvme);
  EXPECT_EQ(InMemory(rig, 1000, kPages), kPages);
}

TEST(EnginePrefetchTest, PrefetchesAndGetsOfOneKeyShareOneRead) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  uint64_t reads = 0;
  rig.faults->SetPlan([&reads](const IoRequest& request, uint64_t) {
    if (request.op == IoOp::kRead) ++reads;
    return Fault{.delay_polls = 3};
  });
  const uint64_t first = rig.worker().Send(PrefetchOf(1, 1));
  const uint64_t get = rig.worker().Send(
      {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 5}}});
  const uint64_t second = rig.worker().Send(PrefetchOf(1, 1));
  rig.Settle();
  EXPECT_EQ(reads, 1u);
  EXPECT_EQ(rig.worker().Answer(first).tier, Tier::kDram);
  EXPECT_EQ(rig.worker().Answer(second).tier, Tier::kDram);
  EXPECT_EQ(rig.worker().Answer(get).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker().Read(5), AfterLoss(PageOf(1), 4));
}

TEST(EnginePrefetchTest, ReadsInFlightAreBoundedAndTheRestComesAfter) {
  RigOptions options = Tiered();
  options.main_bytes = 256 << 10;
  options.limits.prefetches_max = 2;
  Rig rig(options);
  FillMemory(rig, 1);
  for (uint64_t first = 1000; first < 5000; first += 1000) FillMemory(rig, first);
  ASSERT_EQ(InMemory(rig, 1, kPages), 0u);
  uint64_t most = 0;
  rig.faults->SetPlan([&](const IoRequest&, uint64_t) {
    most = std::max(most, rig.engine->stats().prefetches);
    return Fault{.delay_polls = 3};
  });
  for (const WireBlockReply& reply : Prefetch(rig, 1, kPages / 2)) {
    EXPECT_EQ(reply.result, BlockResult::kOk);
  }
  EXPECT_LE(most, 2u);
  EXPECT_EQ(InMemory(rig, 1, kPages / 2), kPages / 2);
  rig.ExpectAtRest();
}

TEST(EnginePrefetchTest, ADeadlineEndsItAndTheAnswerSaysWhereThePageWas) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 1000}; });
  RequestSpec spec = PrefetchOf(1, 1);
  spec.deadline_us = 5000;
  const uint64_t id = rig.worker().Send(spec);
  for (int i = 0; i < 10; ++i) rig.Turn();
  EXPECT_FALSE(rig.worker().Answered(id));
  rig.clock.Advance(6000);
  for (int i = 0; i < 10; ++i) rig.Turn();
  ASSERT_TRUE(rig.worker().Answered(id));
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kTimeout);
  EXPECT_EQ(rig.worker().Answer(id).tier, Tier::kNvme);
  rig.faults->SetPlan(nullptr);
  rig.Settle();
  rig.ExpectAtRest();
}

TEST(EnginePrefetchTest, ARottenRecordIsAMissAndIsForgotten) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return request.op == IoOp::kRead ? Fault{.error = 5} : Fault{};
  });
  EXPECT_EQ(Prefetch(rig, 1, 1)[0].result, BlockResult::kMiss);
  rig.faults->SetPlan(nullptr);
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.engine->stats().promotions_failed, 1u);
}

}  // namespace
}  // namespace crumb::testing
