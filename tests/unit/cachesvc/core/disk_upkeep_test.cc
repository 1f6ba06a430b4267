// The NVMe tier beside serving: its write budget, rescue from reclaim, scrub.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

constexpr uint64_t kDayUs = 86'400'000'000;

// Evicted pages of a pool that holds 16, until the log has gone round.
void GoRound(Rig& rig, uint64_t first_key, uint64_t pages) {
  for (uint64_t key = first_key; key < first_key + pages; ++key) rig.Put(key, PageOf(key));
}

RigOptions WithBudget(uint64_t bytes_per_day) {
  RigOptions options = Tiered();
  options.disk.write_bytes_per_day = bytes_per_day;
  return options;
}

TEST(EngineBudgetTest, WhenItIsSpentEvictedPagesAreDroppedAndCounted) {
  Rig rig(WithBudget(24 * 40'960));  // ten blocks an hour
  GoRound(rig, 1, 60);
  const EngineStats stats = rig.engine->stats();
  EXPECT_GT(stats.evicted_to_nvme, 0u);
  EXPECT_LE(stats.evicted_to_nvme, 12u);
  EXPECT_GT(stats.evicted_over_budget, 0u);
  EXPECT_EQ(stats.evicted_over_budget, stats.evicted_dropped);
  EXPECT_LE(stats.write_budget_left, 0);
  EXPECT_EQ(stats.write_budget_per_day, uint64_t{24 * 40'960});
  rig.ExpectAtRest();
}

TEST(EngineBudgetTest, ItComesBackWithTime) {
  Rig rig(WithBudget(24 * 40'960));
  GoRound(rig, 1, 60);
  const uint64_t before = rig.engine->stats().evicted_to_nvme;
  rig.clock.Advance(kDayUs / 24);
  GoRound(rig, 100, 10);
  EXPECT_GT(rig.engine->stats().evicted_to_nvme, before);
}

TEST(EngineBudgetTest, DurablePutsArePromisesAndCount) {
  Rig rig(WithBudget(24 * 40'960));
  GoRound(rig, 1, 60);
  const int64_t left = rig.engine->stats().write_budget_left;
  for (uint64_t key = 200; key < 220; ++key) {
    EXPECT_EQ(rig.Put(key, PageOf(key), kWireFlagDurable).result, BlockResult::kOk);
  }
  EXPECT_LE(rig.engine->stats().write_budget_left, left - 20 * int64_t{kPageAlignment});
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 210, Tier::kNvme);
}

TEST(EngineBudgetTest, ADrainObeysIt) {
  Rig rig(WithBudget(24 * 8192));
  GoRound(rig, 1, 16);
  bool done = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&done] { done = true; });
  rig.Settle();
  EXPECT_TRUE(done);
  EXPECT_GT(rig.engine->stats().unsaved_over_budget, 0u);
}

TEST(EngineBudgetTest, WhatTheDeviceGetsIsMoreThanThePages) {
  Rig rig(Tiered());
  GoRound(rig, 1, 600);  // seals a segment or two
  const EngineStats stats = rig.engine->stats();
  EXPECT_GT(stats.nvme_page_bytes, 0u);
  EXPECT_GE(stats.nvme.bytes_written, stats.nvme_page_bytes);
  EXPECT_EQ(stats.nvme.bytes_written, stats.nvme.bytes_issued);
  EXPECT_EQ(stats.write_budget_per_day, 0u);
}

// 8 segments of a mebibyte, of which the first to be written over holds page 1.
RigOptions WithRescue(bool on = true) {
  RigOptions options = Tiered();
  options.policy = PolicyKind::kLru;  // one flood pushes out what was read
  options.disk.rescue = on;
  return options;
}

// Puts until the first segment was written over `rounds` times.
void UntilReclaimed(Rig& rig, uint64_t segments, uint64_t first_key) {
  for (uint64_t key = first_key; rig.engine->stats().nvme.segments_reclaimed < segments; ++key) {
    rig.Put(key, PageOf(key));
    ASSERT_LT(key, first_key + 10'000);
  }
}

void ReadFromDisk(Rig& rig, uint64_t key, uint64_t flood) {
  ASSERT_EQ(rig.Lookup(key).tier, Tier::kNvme);
  ExpectHit(rig, key, Tier::kNvme);
  for (uint64_t other = flood; rig.Lookup(key).tier != Tier::kNvme; ++other) {
    rig.Put(other, PageOf(other));
    ASSERT_LT(other, flood + 1000);
  }
}

TEST(EngineRescueTest, APageThatWasReadOutlivesItsSegment) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  UntilReclaimed(rig, 2, 10'000);
  const EngineStats stats = rig.engine->stats();
  EXPECT_GE(stats.rescued, 1u);
  EXPECT_EQ(stats.rescued_bytes, stats.rescued * kPageAlignment);
  ExpectHit(rig, 1, Tier::kNvme);
  ExpectMiss(rig, 2);  // nobody asked for it
  rig.ExpectAtRest();
}

TEST(EngineRescueTest, WithoutItThePageIsGone) {
  Rig rig(WithRescue(false));
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  UntilReclaimed(rig, 2, 10'000);
  EXPECT_EQ(rig.engine->stats().rescued, 0u);
  ExpectMiss(rig, 1);
}

TEST(EngineRescueTest, ADurablePageStaysDurable) {
  Rig rig(WithRescue());
  ASSERT_EQ(rig.Put(1, PageOf(1), kWireFlagDurable).result, BlockResult::kOk);
  FillMemory(rig);
  ReadFromDisk(rig, 1, 1'000'000);
  UntilReclaimed(rig, 1, 10'000);
  ASSERT_GE(rig.engine->stats().rescued, 1u);
  rig.Restart(&kNothingSurvives);
  ExpectHit(rig, 1, Tier::kNvme);
}

TEST(EngineRescueTest, ItIsRescuedAgainOnlyIfItIsReadAgain) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  UntilReclaimed(rig, 20, 10'000);
  ExpectMiss(rig, 1);
}

TEST(EngineRescueTest, AtMostAQuarterOfASegmentIsRescued) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 230);
  for (uint64_t key = 1; key <= 200; ++key) ExpectHit(rig, key, Tier::kNvme);
  UntilReclaimed(rig, 1, 10'000);
  rig.Settle();
  const EngineStats stats = rig.engine->stats();
  EXPECT_GT(stats.rescued, 0u);
  EXPECT_LE(stats.rescued_bytes, 2 * (uint64_t{1} << 20) / 4);  // of this segment and the next
  EXPECT_GT(stats.rescues_over_share, 0u);
}

TEST(EngineRescueTest, ASpentBudgetRescuesNothing) {
  RigOptions options = WithRescue();
  options.disk.write_bytes_per_day = uint64_t{24} * 400 * kPageAlignment;
  Rig rig(options);
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  for (uint64_t key = 10'000; rig.engine->stats().nvme.segments_reclaimed < 1; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key), kWireFlagDurable).result, BlockResult::kOk);
    ASSERT_LT(key, 20'000u);
  }
  EXPECT_EQ(rig.engine->stats().rescued, 0u);
  EXPECT_GT(rig.engine->stats().rescues_over_budget, 0u);
  ExpectMiss(rig, 1);
}

TEST(EngineRescueTest, AnErasedPageIsNotWrittenAnew) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 30u : 0u};
  });
  for (uint64_t key = 10'000; rig.engine->stats().nvme.segments_reclaimed < 1; ++key) {
    rig.Put(key, PageOf(key));
    if (key == 11'000) {
      EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
    }
    ASSERT_LT(key, 20'000u);
  }
  ExpectMiss(rig, 1);
  rig.Restart();
  ExpectMiss(rig, 1);
}

TEST(EngineRescueTest, ARecordThatRottedIsForgottenAndNotSpread) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.flip_bit = request.op == IoOp::kRead ? 3000 : -1};
  });
  UntilReclaimed(rig, 1, 10'000);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  EXPECT_EQ(rig.engine->stats().rescued, 0u);
  EXPECT_GE(rig.engine->stats().rescues_failed, 1u);
  EXPECT_GE(rig.engine->stats().checksum_failures_scrub, 1u);
  ExpectMiss(rig, 1);
}

TEST(EngineRescueTest, AWriteThatFailsLosesThePageAlone) {
  Rig rig(WithRescue());
  GoRound(rig, 1, 40);
  ReadFromDisk(rig, 1, 1'000'000);
  bool fail = false;
  rig.faults->SetPlan([&fail](const IoRequest& request, uint64_t) {
    if (request.op == IoOp::kRead) fail = true;  // the rescue's: what follows is its write
    const bool now = fail && request.op == IoOp::kWrite;
    if (now) fail = false;
    return Fault{.error = now ? 5 : 0};
  });
  UntilReclaimed(rig, 1, 10'000);
  EXPECT_GE(rig.engine->stats().rescues_failed + rig.engine->stats().eviction_failures, 1u);
  rig.ExpectAtRest();
}

RigOptions WithScrub(uint64_t bytes_per_second) {
  RigOptions options = Tiered();
  options.disk.scrub_bytes_per_second = bytes_per_second;
  return options;
}

// A sealed segment's worth of pages; time stands still until Scrub.
void Scrub(Rig& rig, uint64_t seconds) {
  for (uint64_t step = 0; step < seconds * 100; ++step) {
    rig.clock.Advance(10'000);
    for (int i = 0; i < 8; ++i) rig.Turn();
  }
}

TEST(EngineScrubTest, RotIsFoundBeforeAnybodyAsks) {
  Rig rig(WithScrub(100 << 20));
  GoRound(rig, 1, 600);
  ASSERT_EQ(rig.Lookup(100).tier, Tier::kNvme);
  const uint64_t bad_before = rig.engine->stats().scrub_bad_pages;
  std::vector<uint8_t> payload;
  for (size_t i = 0; i < 256; ++i) payload.push_back(PageOf(100)[i * 4]);
  MutableBytes image = rig.device->mutable_image();
  const auto at = std::search(image.begin(), image.end(), payload.begin(), payload.end());
  ASSERT_NE(at, image.end());
  at[7] ^= 0x10;
  Scrub(rig, 60);
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.scrub_bad_pages, bad_before + 1);
  EXPECT_EQ(stats.checksum_failures_scrub, 1u);
  EXPECT_GT(stats.scrubbed_pages, 200u);
  EXPECT_GE(stats.scrub_passes, 1u);
  EXPECT_EQ(rig.Lookup(100).result, BlockResult::kMiss);
  EXPECT_EQ(stats.hit_then_failed, 0u);
  ExpectHit(rig, 101, Tier::kNvme);
  rig.Restart();
  EXPECT_EQ(rig.Lookup(100).result, BlockResult::kMiss);
}

TEST(EngineScrubTest, ItKeepsItsRate) {
  Rig rig(WithScrub(64 << 10));  // 16 pages a second
  GoRound(rig, 1, 600);
  Scrub(rig, 20);
  const uint64_t pages = rig.engine->stats().scrubbed_pages;
  EXPECT_GE(pages, 100u);
  EXPECT_LE(pages, 16u * 20 + 16);
}

TEST(EngineScrubTest, OffMeansOff) {
  Rig rig(WithScrub(0));
  GoRound(rig, 1, 600);
  Scrub(rig, 20);
  EXPECT_EQ(rig.engine->stats().scrubbed_pages, 0u);
  EXPECT_EQ(rig.engine->stats().nvme.bytes_read, 0u);
}

TEST(EngineScrubTest, PassesKeepTheirDistance) {
  Rig rig(WithScrub(100 << 20));
  GoRound(rig, 1, 600);
  Scrub(rig, 60);
  ASSERT_EQ(rig.engine->stats().scrub_passes, 1u);
  Scrub(rig, 60);
  EXPECT_EQ(rig.engine->stats().scrub_passes, 1u);
  rig.clock.Advance(kDayUs);
  Scrub(rig, 60);
  EXPECT_EQ(rig.engine->stats().scrub_passes, 2u);
}

TEST(EngineScrubTest, SegmentsMayBeWrittenOverUnderIt) {
  Rig rig(WithScrub(100 << 20));
  for (uint64_t round = 0; round < 40; ++round) {
    GoRound(rig, 1 + round * 100, 100);
    rig.clock.Advance(20'000);
    rig.Turn();
  }
  Scrub(rig, 60);
  EXPECT_GT(rig.engine->stats().nvme.segments_reclaimed, 0u);
  EXPECT_EQ(rig.engine->stats().scrub_bad_pages, 0u);
  EXPECT_GT(rig.engine->stats().scrubbed_pages, 0u);
  rig.ExpectAtRest();
}

TEST(EngineScrubTest, APageThatIsInMemoryTooLosesItsRecordAlone) {
  Rig rig(WithScrub(100 << 20));
  GoRound(rig, 1, 600);
  ExpectHit(rig, 100, Tier::kNvme);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 5 : 0};
  });
  Scrub(rig, 60);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  ExpectHit(rig, 100, Tier::kDram);
  ExpectMiss(rig, 101);
  rig.ExpectAtRest();
}

absl::Status ResizeTo(Rig& rig, uint64_t bytes) {
  std::optional<absl::Status> done;
  rig.engine->ResizeDisk(bytes, [&done](const absl::Status& status) { done = status; });
  for (int turn = 0; turn < 10'000 && !done.has_value(); ++turn) rig.Turn();
  return done.value_or(absl::DeadlineExceededError("no answer"));
}

TEST(EngineResizeTest, PagesBehindTheNewEndAreMissesAndTheOthersHits) {
  Rig rig(Tiered());
  GoRound(rig, 1, 1500);  // over six of eight segments
  const uint64_t before = rig.engine->stats().index_entries;
  ASSERT_TRUE(ResizeTo(rig, 4 << 20).ok());
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.nvme.segments, 4u);
  EXPECT_LT(stats.index_entries, before - 300);
  EXPECT_LE(stats.nvme.used_bytes, stats.nvme.capacity_bytes);
  uint64_t hits = 0;
  for (uint64_t key = 1; key <= 1500; key += 13) {
    std::vector<uint8_t> got;
    if (rig.Get(key, &got).result != BlockResult::kOk) continue;
    ASSERT_EQ(got, AfterLoss(PageOf(key), 4)) << key;
    ++hits;
  }
  EXPECT_GT(hits, 50u);
  EXPECT_EQ(rig.engine->stats().hit_then_failed, 0u);
  GoRound(rig, 5000, 2000);
  rig.ExpectAtRest();
}

TEST(EngineResizeTest, ItGrowsAndOneAtATime) {
  Rig rig(Tiered());
  GoRound(rig, 1, 600);
  ASSERT_TRUE(rig.device->Resize(16 << 20).ok());
  bool first = false;
  rig.engine->ResizeDisk(16 << 20, [&first](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    first = true;
  });
  EXPECT_EQ(ResizeTo(rig, 8 << 20).code(), absl::StatusCode::kResourceExhausted);
  rig.Settle();
  EXPECT_TRUE(first);
  EXPECT_EQ(rig.engine->stats().nvme.segments, 16u);
  GoRound(rig, 1000, 3000);
  EXPECT_EQ(rig.engine->stats().nvme.segments_reclaimed, 0u);
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(ResizeTo(rig, 1 << 20).code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineResizeTest, WithoutATierItSaysSo) {
  Rig rig(RigOptions{});
  EXPECT_EQ(ResizeTo(rig, 8 << 20).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(EngineDrainTest, AnswersAtItsDeadlineWhateverTheDiskDoes) {
  Rig rig(Tiered());
  GoRound(rig, 1, 16);
  bool stuck = true;
  rig.faults->SetPlan([&stuck](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op != IoOp::kRead && stuck ? 1'000'000u : 0u};
  });
  bool done = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&done] { done = true; });
  for (int turn = 0; turn < 100; ++turn) rig.Turn();
  EXPECT_FALSE(done);
  rig.clock.Advance(1'000'001);
  for (int turn = 0; turn < 100; ++turn) rig.Turn();
  EXPECT_TRUE(done);
  rig.faults->Forget();  // the log's end would wait for it
}

TEST(EngineDrainTest, SwitchedOffItWritesNothing) {
  RigOptions options = Tiered();
  options.disk.save = false;
  Rig rig(options);
  GoRound(rig, 1, 16);
  bool done = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&done] { done = true; });
  rig.Settle();
  EXPECT_TRUE(done);
  EXPECT_EQ(rig.engine->stats().nvme.bytes_written, 0u);
}

// A slow disk reads straight from the pool: what it reads must not be reused under it, whatever
// becomes of the key.
TEST(EngineHazardTest, SlowWritesStoreWhatTheirKeyHeld) {
  Rig rig(Tiered());
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kWrite ? 40u : 0u};
  });
  std::vector<uint64_t> ids;
  for (uint64_t key = 1; key <= 300; ++key) {
    const auto slot = static_cast<uint32_t>(key % 32);
    rig.worker().Fill(slot, PageOf(key));
    ids.push_back(rig.worker().Send(
        {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key), .slot = slot}}}));
    for (int turn = 0; turn < 30; ++turn) rig.Turn();
    if (key % 3 == 0) {
      rig.worker().Send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(key - 2)}}});
    }
  }
  rig.Settle();
  uint64_t hits = 0;
  for (uint64_t key = 1; key <= 300; ++key) {
    std::vector<uint8_t> got;
    if (rig.Get(key, &got).result != BlockResult::kOk) continue;
    ASSERT_EQ(got, AfterLoss(PageOf(key), 4)) << key;
    ++hits;
  }
  EXPECT_GT(hits, 100u);
  EXPECT_EQ(rig.engine->stats().checksum_failures_nvme, 0u);
  rig.ExpectAtRest();
}

TEST(EngineHazardTest, AGetWhileThePageIsBeingWrittenIsWholeOrAMiss) {
  Rig rig(Tiered());
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kWrite ? 25u : 0u};
  });
  for (uint64_t key = 1; key <= 60; ++key) {
    rig.worker().Fill(1, PageOf(key));
    rig.worker().Send(
        {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key), .slot = 1}}});
    for (int turn = 0; turn < 8; ++turn) {
      rig.Turn();
      const uint64_t get = rig.worker().Send(
          {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(key), .slot = 2}}});
      rig.Settle();
      const WireBlockReply reply = rig.worker().Answer(get);
      if (reply.result == BlockResult::kOk) {
        ASSERT_EQ(rig.worker().Read(2), AfterLoss(PageOf(key), 4));
      } else {
        ASSERT_EQ(reply.result, BlockResult::kMiss);
      }
    }
  }
}

}  // namespace
}  // namespace crumb::testing
