// Precision by position: which pages of a chain are raw, whatever the order in which they come.
#include <algorithm>
#include <numeric>

#include "cachesvc/base/rng.h"
#include "tests/unit/cachesvc/core/windowed.h"

namespace crumb::testing {
namespace {

TEST(EngineWindowsTest, TheSinkAndTheRecentPagesAreRawAndTheOthersPacked) {
  Rig rig(Windowed());
  PutChain(rig, 100, 8);
  EXPECT_EQ(Precisions(rig, 100, 8), "r22222rr");
  EXPECT_EQ(Demotions(rig, DemotionReason::kDescendant), 5u);
  for (uint64_t at = 0; at < 8; ++at) {
    std::vector<uint8_t> got;
    ASSERT_EQ(rig.Get(100 + at, &got).result, BlockResult::kOk);
    const bool packed = at > 0 && at < 6;
    EXPECT_EQ(got, packed ? AfterLoss(PageOf(100 + at), 4) : PageOf(100 + at)) << at;
  }
  EXPECT_EQ(rig.engine->stats().fresh_used_bytes, 2 * kRawSlot);
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 3 * kRawSlot + 5 * kPackedSlot);
  rig.ExpectAtRest();
}

TEST(EngineWindowsTest, AChainInOneRequestIsStoredAtItsFinalPrecisionsAtOnce) {
  Rig rig(Windowed());
  RequestSpec spec;
  for (uint32_t at = 0; at < 8; ++at) {
    rig.worker().Fill(at, PageOf(100 + at));
    BlockSpec block{.digest = DigestNumber(100 + at), .token_start = at * kTokens, .slot = at};
    if (at > 0) block.parent = DigestNumber(100 + at - 1);
    spec.blocks.push_back(block);
  }
  rig.worker().Send(spec);
  rig.Settle();
  EXPECT_EQ(Precisions(rig, 100, 8), "r22222rr");
  EXPECT_EQ(Demotions(rig, DemotionReason::kDescendant), 0u);
  EXPECT_EQ(rig.engine->stats().fresh_pages, 2u);
  rig.ExpectAtRest();
}

TEST(EngineWindowsTest, EveryOrderOfCommitsEndsInTheSamePrecisions) {
  std::vector<uint64_t> order(5);
  std::iota(order.begin(), order.end(), 0);
  do {
    Rig rig(Windowed());
    for (const uint64_t at : order) ASSERT_EQ(PutAt(rig, 10, at).result, BlockResult::kOk);
    EXPECT_EQ(Precisions(rig, 10, 5), "r22rr");
    EXPECT_EQ(rig.engine->stats().fresh_pages, 2u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(EngineWindowsTest, ALateParentIsStoredAtOnceAtItsFinalPrecision) {
  Rig rig(Windowed());
  for (const uint64_t at : {0, 1, 3, 4, 5}) PutAt(rig, 10, static_cast<uint64_t>(at));
  // Nobody knows that page 1 comes before page 3: the page between them is missing.
  EXPECT_EQ(Precisions(rig, 10, 6), "rr.2rr");
  const uint64_t demoted = Demotions(rig, DemotionReason::kDescendant);
  EXPECT_EQ(PutAt(rig, 10, 2).precision, Precision::kInt2);
  EXPECT_EQ(Precisions(rig, 10, 6), "r222rr");
  EXPECT_EQ(Demotions(rig, DemotionReason::kDescendant), demoted + 1) << "page 1 alone";
}

TEST(EngineWindowsTest, AMiddleThatWasDeletedIsKnownToBeOldWhenItComesBack) {
  Rig rig(Windowed());
  PutChain(rig, 10, 8);
  EXPECT_EQ(rig.Delete(13).result, BlockResult::kOk);
  EXPECT_EQ(PutAt(rig, 10, 3).precision, Precision::kInt2);
  EXPECT_EQ(rig.engine->stats().fresh_pages, 2u);
}

TEST(EngineWindowsTest, GrowthOfOneBranchDemotesWhatItSharesAndNotTheOtherBranch) {
  Rig rig(Windowed());
  PutChain(rig, 10, 3);  // r r r: the sink and two fresh pages
  // Two branches behind page 1: the second grows.
  const auto branch = [&](uint64_t key, uint64_t parent, uint32_t at) {
    return rig.PutChained(key, parent, at * kTokens);
  };
  EXPECT_EQ(branch(50, 11, 2).precision, Precision::kRaw);
  EXPECT_EQ(branch(51, 50, 3).precision, Precision::kRaw);
  EXPECT_EQ(rig.Lookup(11).precision, Precision::kInt2);
  EXPECT_EQ(rig.Lookup(12).precision, Precision::kRaw) << "the newest page of its own branch";
  EXPECT_EQ(branch(52, 51, 4).precision, Precision::kRaw);
  EXPECT_EQ(rig.Lookup(50).precision, Precision::kInt2);
  EXPECT_EQ(rig.Lookup(12).precision, Precision::kRaw);
}

TEST(EngineWindowsTest, AnUnknownPositionIsEncodedAtOnceAndCounted) {
  Rig rig(Windowed());
  EXPECT_EQ(rig.PutChained(7, 0, kTokenStartUnknown).precision, Precision::kInt4);
  EXPECT_EQ(rig.engine->stats().unknown_position_pages, 1u);
  EXPECT_EQ(rig.engine->stats().fresh_pages, 0u);
}

TEST(EngineWindowsTest, APartialPageIsFreshUntilItsChainStandsStill) {
  RigOptions options = Windowed();
  options.fresh_idle_us = 1'000'000;
  Rig rig(options);
  PutChain(rig, 10, 2);
  rig.worker().Fill(0, PageOf(90));
  const WireBlockReply put = rig.Ask({.type = WireType::kPut,
                                      .blocks = {{.digest = DigestNumber(90),
                                                  .parent = DigestNumber(11),
                                                  .token_start = 2 * kTokens,
                                                  .token_count = 5}}});
  EXPECT_EQ(put.precision, Precision::kRaw);
  rig.clock.Advance(999'999);
  rig.Settle();
  EXPECT_EQ(rig.Lookup(90).precision, Precision::kRaw);
  EXPECT_EQ(rig.engine->next_timer_us(), rig.clock.now_us() + 1);
  rig.clock.Advance(1);
  rig.Settle();
  EXPECT_EQ(rig.Lookup(90).precision, Precision::kInt2);
  EXPECT_EQ(Precisions(rig, 10, 2), "r2") << "its chain stood still too; a sink stays";
  EXPECT_EQ(Demotions(rig, DemotionReason::kIdle), 2u);
}

TEST(EngineWindowsTest, GrowthKeepsTheRecentPagesOfAChainFromBeingIdle) {
  RigOptions options = Windowed();
  options.fresh_idle_us = 1'000'000;
  Rig rig(options);
  PutChain(rig, 10, 2);
  rig.clock.Advance(600'000);
  ASSERT_EQ(PutAt(rig, 10, 2).result, BlockResult::kOk);
  rig.clock.Advance(600'000);
  rig.Settle();
  EXPECT_EQ(Precisions(rig, 10, 3), "rrr");
  EXPECT_EQ(rig.engine->stats().fresh_oldest_us, 600'000u);
}

TEST(EngineWindowsTest, AFullShareDemotesTheOldestFirst) {
  RigOptions options = Windowed();
  options.fresh_percent = 10;  // of 1 MiB: one slab, of 5 raw slots
  Rig rig(options);
  for (uint64_t key = 1; key <= 5; ++key) rig.PutChained(key, 0, 64);
  EXPECT_EQ(Precisions(rig, 1, 5), "rrrrr");
  EXPECT_EQ(rig.PutChained(6, 0, 64).precision, Precision::kRaw);
  EXPECT_EQ(Precisions(rig, 1, 6), "2rrrrr");
  EXPECT_EQ(Demotions(rig, DemotionReason::kFull), 1u);
  EXPECT_LE(rig.engine->stats().fresh_slab_bytes, rig.engine->stats().fresh_capacity_bytes);
}

TEST(EngineWindowsTest, APoolTooSmallForOneFreshPageEncodesAtOnce) {
  RigOptions options = Windowed();
  options.fresh_percent = 1;
  Rig rig(options);
  PutChain(rig, 10, 3);
  EXPECT_EQ(Precisions(rig, 10, 3), "r22");
}

TEST(EngineWindowsTest, ASecondPutReplacesOnlyWhatItWouldBetterAsStoredNow) {
  RigOptions options = Windowed();
  options.fresh_idle_us = 1000;
  Rig rig(options);
  PutChain(rig, 10, 5);
  EXPECT_EQ(Precisions(rig, 10, 5), "r22rr");
  EXPECT_EQ(PutAt(rig, 10, 1).result, BlockResult::kExists) << "it would be packed now, as it is";
  EXPECT_EQ(PutAt(rig, 10, 4).result, BlockResult::kExists);
  EXPECT_EQ(PutAt(rig, 10, 0).result, BlockResult::kExists);
  rig.clock.Advance(1000);
  rig.Settle();
  EXPECT_EQ(Precisions(rig, 10, 5), "r2222");
  EXPECT_EQ(PutAt(rig, 10, 4).result, BlockResult::kOk) << "it would be raw now";
  EXPECT_EQ(Precisions(rig, 10, 5), "r222r");
}

TEST(EngineWindowsTest, NaNIsRefusedAtThePutAlsoWhereThePageIsRawForNow) {
  Rig rig(Windowed());
  std::vector<uint8_t> page = PageOf(1);
  page[0] = page[1] = 0xff;
  rig.worker().Fill(0, page);
  for (const uint32_t token_start : {0u, 64u}) {
    const WireBlockReply reply =
        rig.Ask({.type = WireType::kPut,
                 .blocks = {{.digest = DigestNumber(1), .token_start = token_start}}});
    EXPECT_EQ(reply.result, BlockResult::kNonFinite);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  }
  RigOptions keeping = Windowed();
  keeping.keep_non_finite_raw = true;
  Rig kept(keeping);
  kept.worker().Fill(0, page);
  const WireBlockReply reply = kept.Ask(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1), .token_start = 64}}});
  EXPECT_EQ(reply.result, BlockResult::kOk);
  EXPECT_EQ(kept.engine->stats().fresh_pages, 0u) << "it can never be packed";
}

TEST(EngineWindowsTest, ARestartKnowsTheChainsThatItFindsOnDisk) {
  Rig rig(Windowed(16 << 20));
  for (const uint64_t at : {0, 1, 2, 3, 5, 6, 7}) {
    ASSERT_EQ(PutAt(rig, 10, static_cast<uint64_t>(at), kWireFlagDurable).result, BlockResult::kOk);
  }
  rig.Restart();
  EXPECT_EQ(Precisions(rig, 10, 8), "r2rr.2rr") << "what was raw on disk stays raw";
  EXPECT_EQ(PutAt(rig, 10, 4).precision, Precision::kInt2) << "a page that was late";
}

// A branch that reaches far, a short one, and a parent that is missing, in whatever order the log
// has them.
TEST(EngineWindowsTest, ARestartKnowsBranchesInAnyOrder) {
  struct Page {
    uint64_t key, parent;
    uint32_t at;
  };
  std::vector<Page> pages = {{10, 0, 0},  {12, 11, 2}, {50, 12, 3}, {60, 12, 3},
                             {61, 60, 4}, {62, 61, 5}, {30, 0, 0},  {32, 31, 2}};
  Rng rng(3);
  for (int round = 0; round < 30; ++round) {
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[rng.Below(i)]);
    Rig rig(Windowed(16 << 20));
    for (const Page& page : pages) {
      rig.worker().Fill(0, PageOf(page.key));
      BlockSpec block{.digest = DigestNumber(page.key), .token_start = page.at * kTokens};
      if (page.parent != 0) block.parent = DigestNumber(page.parent);
      ASSERT_EQ(
          rig.Ask({.type = WireType::kPut, .blocks = {block}, .flags = kWireFlagDurable}).result,
          BlockResult::kOk);
    }
    rig.Restart();
    EXPECT_EQ(PutAt(rig, 10, 1).precision, Precision::kInt2) << "behind the longer branch's window";
    EXPECT_EQ(PutAt(rig, 30, 1).precision, Precision::kRaw) << "one page from the end";
    EXPECT_EQ(rig.PutChained(63, 62, 6 * kTokens).precision, Precision::kRaw);
    EXPECT_EQ(rig.PutChained(51, 50, 4 * kTokens).precision, Precision::kRaw);
  }
}

// 2048 tokens is what Qwen3-8B has: more than a page may be behind the end that a restart knows.
TEST(EngineWindowsTest, ARestartKnowsHowFarLongChainsReachBeyondAWideWindow) {
  constexpr uint64_t kPages = 240;
  RigOptions options = Windowed(16 << 20);
  options.main_bytes = 8 << 20;
  options.windows.recent_tokens = 2048;
  Rig rig(options);
  for (uint64_t at = 0; at < kPages; ++at) {
    ASSERT_EQ(PutAt(rig, 1000, at, kWireFlagDurable).result, BlockResult::kOk) << at;
  }
  EXPECT_EQ(PutAt(rig, 1000, 10).result, BlockResult::kExists);
  rig.Restart();
  EXPECT_EQ(rig.Lookup(1010).precision, Precision::kInt2);
  EXPECT_EQ(PutAt(rig, 1000, 10).result, BlockResult::kExists) << "an old page of a long chain";
  EXPECT_EQ(rig.Lookup(1010).precision, Precision::kInt2);
}

TEST(EngineWindowsTest, LookupSaysHowManyTokensAtThePrefixEndAreRaw) {
  Rig rig(Windowed());
  PutChain(rig, 10, 6);  // r222rr
  const auto tails = [&](const std::vector<uint64_t>& keys) {
    RequestSpec spec{.type = WireType::kLookup, .blocks = {}};
    for (const uint64_t key : keys) spec.blocks.push_back({.digest = DigestNumber(key)});
    const uint64_t id = rig.worker().Send(spec);
    rig.Settle();
    std::vector<uint64_t> out;
    for (const WireBlockReply& block : rig.worker().replies.at(id).blocks) {
      out.push_back(block.checksum);
    }
    return out;
  };
  EXPECT_EQ(tails({10, 11, 12, 13, 14, 15}), (std::vector<uint64_t>{16, 0, 0, 0, 16, 32}));
  EXPECT_EQ(tails({14, 99, 15}), (std::vector<uint64_t>{16, 0, 16})) << "a gap ends the prefix";
}

TEST(EngineWindowsTest, ABlockOfSeveralPartsIsRawWhereAllOfThemAre) {
  RigOptions options = Windowed();
  options.parts = 2;
  Rig rig(options);
  const auto put = [&](uint16_t part, uint64_t key, uint32_t at) {
    rig.worker().Fill(0, PageOf(key));
    return rig.Ask({.type = WireType::kPut,
                    .blocks = {{.digest = DigestNumber(key), .token_start = at, .part = part}}});
  };
  ASSERT_EQ(put(0, 1, 64).result, BlockResult::kOk);
  const auto ask = [&] {
    const uint64_t id = rig.worker().Send({.type = WireType::kLookup,
                                           .blocks = {{.digest = DigestNumber(1), .part = 0},
                                                      {.digest = DigestNumber(1), .part = 1}}});
    rig.Settle();
    return rig.worker().replies.at(id).blocks;
  };
  EXPECT_EQ(ask()[0].checksum, 0u) << "half a block is none";
  ASSERT_EQ(put(1, 1, 64).result, BlockResult::kOk);
  EXPECT_EQ(ask()[0].checksum, 0u);
  EXPECT_EQ(ask()[1].checksum, 16u);
}

TEST(EngineWindowsTest, PagesArePlacedInSlabsOfTheirKind) {
  Rig rig(Windowed());
  PutChain(rig, 10, 40);
  const EngineStats stats = rig.engine->stats();
  EXPECT_EQ(stats.fresh_pages, 2u);
  EXPECT_LE(stats.fresh_slab_bytes, 2u * (64 << 10)) << "slabs of demoted pages were given back";
  EXPECT_EQ(stats.pages[0], 3u);
  EXPECT_EQ(stats.pages[3], 37u);
}

}  // namespace
}  // namespace crumb::testing
