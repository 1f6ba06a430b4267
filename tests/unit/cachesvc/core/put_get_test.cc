// put and get through the engine: what comes back in every form, the second put, the ladder,
// chains.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

constexpr uint32_t kRawLayout = 2;

// The same identity under another handle, with other codecs.
void BindAlso(Rig& rig, uint32_t handle, CodecKind kind) {
  ASSERT_TRUE(rig.engine->BindLayout(handle, rig.Bind(kind)).ok());
  ASSERT_TRUE(
      rig.engine->RegisterRegions(rig.worker().session, handle, handle, rig.worker().Spec()).ok());
}

WireBlockReply PutUnder(Rig& rig, uint32_t handle, uint64_t key, const std::vector<uint8_t>& page) {
  rig.worker().Fill(0, page);
  return rig.Ask({.type = WireType::kPut,
                  .blocks = {{.digest = DigestNumber(key)}},
                  .layout = handle,
                  .region_set = handle});
}

std::vector<uint8_t> PageWithNaN() {
  std::vector<uint8_t> page = PageOf(9);
  page[100] = page[101] = 0xff;
  return page;
}

TEST(EnginePutGetTest, APageComesBackAsItsCodecKeepsIt) {
  Rig rig;
  const std::vector<uint8_t> page = PageOf(1);
  const WireBlockReply put = rig.Put(7, page);
  EXPECT_EQ(put.result, BlockResult::kOk);
  EXPECT_EQ(put.tier, Tier::kDram);
  EXPECT_EQ(put.precision, Precision::kInt2);
  EXPECT_EQ(put.value_bytes, kPageHeaderBytes + kRawBytes / 4);
  std::vector<uint8_t> got;
  const WireBlockReply get = rig.Get(7, &got);
  EXPECT_EQ(get.result, BlockResult::kOk);
  EXPECT_EQ(get.tier, Tier::kDram);
  EXPECT_EQ(get.value_bytes, kRawBytes);
  EXPECT_EQ(got, AfterLoss(page, 4));
  const auto dram = static_cast<size_t>(Tier::kDram);
  EXPECT_EQ(rig.engine->stats().bytes_in[dram], kRawBytes);  // as clients count them
  EXPECT_EQ(rig.engine->stats().bytes_out[dram], kRawBytes);
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, ARawLayoutGivesBackTheSameBytes) {
  Rig rig({.codec = CodecKind::kRaw});
  const std::vector<uint8_t> page = PageOf(2);
  EXPECT_EQ(rig.Put(1, page).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, page);
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, WhatWasNeverPutIsAMiss) {
  Rig rig;
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().lookup_blocks[static_cast<size_t>(Tier::kNone)], 1u);
}

TEST(EnginePutGetTest, LookupSaysWhereAndHowPreciseAndPinsNothing) {
  Rig rig;
  rig.Put(1, PageOf(1));
  const WireBlockReply reply = rig.Lookup(1);
  EXPECT_EQ(reply.result, BlockResult::kOk);
  EXPECT_EQ(reply.tier, Tier::kDram);
  EXPECT_EQ(reply.precision, Precision::kInt2);
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, LookupStopsAtTheFirstGapWhenAskedTo) {
  Rig rig;
  for (const uint64_t key : {1, 2, 4}) rig.Put(key, PageOf(key));
  RequestSpec spec{.type = WireType::kLookup};
  for (uint64_t key = 1; key <= 4; ++key) spec.blocks.push_back({.digest = DigestNumber(key)});
  const auto ask = [&rig, &spec] {
    const uint64_t id = rig.worker().Send(spec);
    rig.Settle();
    std::vector<BlockResult> results;
    for (const WireBlockReply& block : rig.worker().replies.at(id).blocks) {
      results.push_back(block.result);
    }
    return results;
  };
  using R = BlockResult;
  EXPECT_EQ(ask(), (std::vector<R>{R::kOk, R::kOk, R::kMiss, R::kOk}));
  spec.flags = kWireFlagStopAtGap;
  EXPECT_EQ(ask(), (std::vector<R>{R::kOk, R::kOk, R::kMiss, R::kMiss}));
}

TEST(EnginePutGetTest, ADeletedPageIsGone) {
  Rig rig;
  rig.Put(1, PageOf(1));
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 0u);
}

TEST(EnginePutGetTest, APartialPageKeepsItsCountAndZeroesTheRest) {
  Rig rig({.codec = CodecKind::kRaw});
  rig.worker().Fill(0, PageOf(3));
  const BlockSpec block{.digest = DigestNumber(1), .token_count = 5};
  EXPECT_EQ(rig.Ask({.type = WireType::kPut, .blocks = {block}}).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  ASSERT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  const std::vector<uint8_t> page = PageOf(3);
  const size_t row = 128 * 2, tensor = kTokens * row;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool inside = i % tensor < 5 * row;
    ASSERT_EQ(got[i], inside ? page[i] : 0) << i;
  }
  BlockSpec other{.digest = DigestNumber(1), .token_count = 6, .slot = 1};
  EXPECT_EQ(rig.Ask({.type = WireType::kGet, .blocks = {other}}).result, BlockResult::kMiss);
}

TEST(EnginePutGetTest, PackedAndPageFormsLeaveAsStoredAndComeBackAsThePage) {
  Rig rig;
  rig.Put(1, PageOf(1));
  std::vector<uint8_t> packed, page, again;
  ASSERT_EQ(rig.Get(1, &packed, PageForm::kPacked).result, BlockResult::kOk);
  EXPECT_EQ(packed.size(), kRawBytes / 4);
  ASSERT_EQ(rig.Get(1, &page, PageForm::kPage).result, BlockResult::kOk);
  EXPECT_EQ(CheckPage(page), PageCheck::kOk);
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), page.begin() + kPageHeaderBytes));
  for (const PageForm form : {PageForm::kPacked, PageForm::kPage}) {
    ASSERT_EQ(rig.Delete(1).result, BlockResult::kOk);
    const std::vector<uint8_t>& value = form == PageForm::kPage ? page : packed;
    rig.worker().Fill(0, value);
    BlockSpec block{.digest = DigestNumber(1)};
    block.value_bytes = static_cast<uint32_t>(value.size());
    EXPECT_EQ(rig.Ask({.type = WireType::kPut, .blocks = {block}, .form = form}).result,
              BlockResult::kOk);
    ASSERT_EQ(rig.Get(1, &again).result, BlockResult::kOk);
    EXPECT_EQ(again, AfterLoss(PageOf(1), 4));
  }
  ASSERT_EQ(rig.Get(1, &again, PageForm::kPage).result, BlockResult::kOk);
  EXPECT_EQ(again, page);
}

TEST(EnginePutGetTest, APackedPutOfTheWrongLengthOrWithNaNIsRefused) {
  Rig rig;
  std::vector<uint8_t> payload(kRawBytes / 4, 1);
  const auto put = [&rig](const std::vector<uint8_t>& value) {
    rig.worker().Fill(0, value);
    BlockSpec block{.digest = DigestNumber(1)};
    block.value_bytes = static_cast<uint32_t>(value.size());
    return rig.Ask({.type = WireType::kPut, .blocks = {block}, .form = PageForm::kPacked}).result;
  };
  EXPECT_EQ(put({payload.begin(), payload.end() - 1}), BlockResult::kMismatch);
  payload[7] = 0xff;  // two of it are a NaN
  EXPECT_EQ(put(payload), BlockResult::kNonFinite);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  payload[7] = 1;
  EXPECT_EQ(put(payload), BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, APageFromOutsideMustBeWholeAndOfThisKeyAndLayout) {
  Rig rig;
  rig.Put(1, PageOf(1));
  std::vector<uint8_t> page;
  ASSERT_EQ(rig.Get(1, &page, PageForm::kPage).result, BlockResult::kOk);
  rig.Delete(1);
  const auto put = [&rig](const std::vector<uint8_t>& value, uint64_t key) {
    rig.worker().Fill(0, value);
    BlockSpec block{.digest = DigestNumber(key)};
    block.value_bytes = static_cast<uint32_t>(value.size());
    return rig.Ask({.type = WireType::kPut, .blocks = {block}, .form = PageForm::kPage}).result;
  };
  EXPECT_EQ(put(page, 2), BlockResult::kMismatch) << "another key";
  for (size_t at = 0; at < page.size(); at += at < kPageHeaderBytes ? 1 : 97) {
    if (at >= offsetof(PageHeader, segment) && at < kPageHeaderBytes) continue;  // its old stamp
    std::vector<uint8_t> damaged = page;
    damaged[at] ^= 0x20;
    const BlockResult result = put(damaged, 1);
    EXPECT_TRUE(result == BlockResult::kCorrupt || result == BlockResult::kMismatch) << at;
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss) << at;
  }
  page.pop_back();
  EXPECT_EQ(put(page, 1), BlockResult::kMismatch) << "cut";
  EXPECT_GT(rig.engine->stats().checksum_failures_peer, 0u);
  rig.ExpectAtRest();
}

TEST(EngineSecondPutTest, TheSamePrecisionAgainIsANoOpThatSaysSo) {
  Rig rig;
  EXPECT_EQ(rig.Put(1, PageOf(1)).result, BlockResult::kOk);
  const WireBlockReply again = rig.Put(1, PageOf(2));
  EXPECT_EQ(again.result, BlockResult::kExists);
  EXPECT_EQ(again.precision, Precision::kInt2);
  std::vector<uint8_t> got;
  rig.Get(1, &got);
  EXPECT_EQ(got, AfterLoss(PageOf(1), 4));
}

TEST(EngineSecondPutTest, OnlyAStrictlyBetterPageReplaces) {
  Rig rig;
  BindAlso(rig, kRawLayout, CodecKind::kRaw);
  rig.Put(1, PageOf(1));
  EXPECT_EQ(PutUnder(rig, kRawLayout, 1, PageOf(2)).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).precision, Precision::kRaw);
  EXPECT_EQ(got, PageOf(2));
  EXPECT_EQ(rig.Put(1, PageOf(3)).result, BlockResult::kExists);
  EXPECT_EQ(rig.engine->stats().index_entries, 1u);
  EXPECT_EQ(rig.engine->stats().pool_pages, 1u);
}

TEST(EngineSecondPutTest, OfManyWritersAtOnceOneWins) {
  Rig rig;
  std::vector<uint64_t> ids;
  for (size_t i = 1; i <= 15; ++i) rig.AddWorker({.session = 100 + i});
  for (size_t i = 0; i <= 15; ++i) {
    rig.worker(i).Fill(0, PageOf(i));
    ids.push_back(
        rig.worker(i).Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}}));
  }
  rig.Settle();
  size_t won = 0, winner = 0;
  for (size_t i = 0; i <= 15; ++i) {
    const BlockResult result = rig.worker(i).Answer(ids[i]).result;
    if (result == BlockResult::kOk) {
      ++won;
      winner = i;
    } else {
      EXPECT_EQ(result, BlockResult::kExists);
    }
  }
  EXPECT_EQ(won, 1u);
  std::vector<uint8_t> got;
  rig.Get(1, &got);
  EXPECT_EQ(got, AfterLoss(PageOf(winner), 4));
  EXPECT_EQ(rig.engine->stats().pool_pages, 1u);
}

TEST(EngineSecondPutTest, WhenTheFirstWriterDiesTheNextTakesOver) {
  Rig rig;
  rig.AddWorker({.session = 2});
  rig.worker(0).Fill(0, PageOf(1));
  rig.worker(1).Fill(0, PageOf(2));
  const RequestSpec spec{.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}};
  rig.wire->hold = true;
  rig.worker(0).Send(spec);
  rig.Settle();
  const uint64_t id = rig.worker(1).Send(spec);
  rig.Settle();
  EXPECT_FALSE(rig.worker(1).Answered(id));
  rig.transport->KillPeer(rig.worker(0).peer);
  rig.Settle();
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker(1).Answer(id).result, BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().abandoned_puts, 1u);
  rig.ExpectAtRest();
}

TEST(EngineLadderTest, APageThatDoesNotFitIsStoredOneStepUp) {
  Rig rig;
  std::vector<uint8_t> page = PageOf(1);
  page[0] = kNoFitMark;
  EXPECT_EQ(rig.Put(1, page).precision, Precision::kInt4);
  std::vector<uint8_t> got, stored;
  rig.Get(1, &got);
  EXPECT_EQ(got, AfterLoss(page, 2));
  rig.Get(1, &stored, PageForm::kPage);
  EXPECT_EQ(LoadHeader(stored).flags, kPageFlagStepped);
  EXPECT_EQ(rig.engine->stats().ladder_steps, 2u);  // int2 and k3v2 did not fit
  rig.ExpectAtRest();
}

TEST(EngineLadderTest, ANaNIsRefusedWithItsPlaceAndLeavesNoTrace) {
  Rig rig;
  std::vector<uint8_t> page = PageOf(1);
  page[0] = kNonFiniteMark;
  const WireBlockReply reply = rig.Put(1, page);
  EXPECT_EQ(reply.result, BlockResult::kNonFinite);
  const PagePlace place = UnpackPlace(reply.checksum);
  EXPECT_EQ(place.layer_id, 3u);
  EXPECT_TRUE(place.is_v);
  EXPECT_EQ(place.head, 1u);
  EXPECT_EQ(place.token, 2u);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 0u);
  EXPECT_EQ(rig.engine->stats().non_finite_pages, 1u);
  rig.ExpectAtRest();
}

TEST(EngineLadderTest, ANaNIsKeptRawWhereTheLayoutAllowsItAndSaysSo) {
  Rig rig({.keep_non_finite_raw = true});
  std::vector<uint8_t> page = PageWithNaN();
  page[0] = kNonFiniteMark;
  EXPECT_EQ(rig.Put(1, page).precision, Precision::kRaw);
  std::vector<uint8_t> got, stored;
  rig.Get(1, &got);
  EXPECT_EQ(got, page);
  rig.Get(1, &stored, PageForm::kPage);
  EXPECT_NE(LoadHeader(stored).flags & kPageFlagNonFinite, 0u);
}

TEST(EngineLadderTest, ARawLayoutKeepsEveryBitPattern) {
  Rig rig({.codec = CodecKind::kRaw});
  EXPECT_EQ(rig.Put(1, PageWithNaN()).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  rig.Get(1, &got);
  EXPECT_EQ(got, PageWithNaN());
}

TEST(EngineLadderTest, AnUnknownPositionGetsMoreBits) {
  Rig rig;
  EXPECT_EQ(rig.PutChained(1, 0, kTokenStartUnknown).precision, Precision::kInt4);
  EXPECT_EQ(rig.PutChained(2, 0, 0).precision, Precision::kInt2);
}

TEST(EngineChainTest, AParentMustBeWholeAndEndWhereItsChildBegins) {
  Rig rig;
  rig.PutChained(1, 0, 0);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens + 1).result, BlockResult::kInvalid);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens).result, BlockResult::kOk);
  EXPECT_EQ(rig.PutChained(3, 3, 0).result, BlockResult::kInvalid) << "its own parent";
  EXPECT_EQ(rig.PutChained(4, 77, 5).result, BlockResult::kOk) << "a parent that is not here";
  rig.worker().Fill(0, PageOf(5));
  const BlockSpec partial{.digest = DigestNumber(5), .token_start = 0, .token_count = 3};
  EXPECT_EQ(rig.Ask({.type = WireType::kPut, .blocks = {partial}}).result, BlockResult::kOk);
  EXPECT_EQ(rig.PutChained(6, 5, 3).result, BlockResult::kInvalid) << "a partial parent";
}

TEST(EngineChainTest, PagesComputedFromLossyOnesSaySo) {
  Rig rig;
  std::vector<uint8_t> got;
  rig.PutChained(1, 0, 0);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens).lossy_depth, 0) << "the session computed page 1 itself";
  EXPECT_EQ(rig.Get(2, &got).result, BlockResult::kOk);
  EXPECT_EQ(rig.PutChained(3, 2, 2 * kTokens).lossy_depth, 1) << "page 2 was served lossy";
  EXPECT_EQ(rig.PutChained(4, 3, 3 * kTokens).lossy_depth, 1) << "of the same lossy context";
  rig.Get(4, &got);
  EXPECT_EQ(rig.PutChained(5, 4, 4 * kTokens).lossy_depth, 2);
  EXPECT_EQ(rig.Lookup(5).lossy_depth, 2);
}

TEST(EngineChainTest, ASessionThatForgotWhatItWasServedCountsAsLossy) {
  RigOptions options;
  options.limits.served_per_session_max = 2;
  Rig rig(options);
  std::vector<uint8_t> got;
  for (uint64_t key = 1; key <= 4; ++key) {
    rig.PutChained(key, 0, 0);
    rig.Get(key, &got);
  }
  EXPECT_EQ(rig.PutChained(9, 4, kTokens).lossy_depth, 1);
}

TEST(EngineChainTest, PagesDeeperThanAllowedAreMisses) {
  Rig rig({.max_lossy_depth = 0});
  std::vector<uint8_t> got;
  rig.PutChained(1, 0, 0);
  rig.Get(1, &got);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens).lossy_depth, 1);
  EXPECT_EQ(rig.Lookup(2).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Get(2, &got).result, BlockResult::kMiss);
}

TEST(EngineChainTest, ALessLossyPageReplacesAMoreLossyOne) {
  Rig rig;
  rig.AddWorker({.session = 2});
  std::vector<uint8_t> got;
  rig.PutChained(1, 0, 0);
  rig.Get(1, &got);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens).lossy_depth, 1);
  rig.worker(1).Fill(0, PageOf(22));
  const BlockSpec block{
      .digest = DigestNumber(2), .parent = DigestNumber(1), .token_start = kTokens};
  const WireBlockReply better = rig.Ask({.type = WireType::kPut, .blocks = {block}}, 1);
  EXPECT_EQ(better.result, BlockResult::kOk);
  EXPECT_EQ(better.lossy_depth, 0);
  EXPECT_EQ(rig.PutChained(2, 1, kTokens).result, BlockResult::kExists);
}

TEST(EnginePartsTest, PartsOfABlockArePagesOfTheirOwn) {
  Rig rig({.parts = 2});
  for (uint16_t part = 0; part < 2; ++part) {
    rig.worker().Fill(part, PageOf(part));
    const BlockSpec block{.digest = DigestNumber(1), .part = part, .slot = part};
    EXPECT_EQ(rig.Ask({.type = WireType::kPut, .blocks = {block}}).result, BlockResult::kOk);
  }
  for (uint16_t part = 0; part < 2; ++part) {
    const BlockSpec block{.digest = DigestNumber(1), .part = part, .slot = 5};
    EXPECT_EQ(rig.Ask({.type = WireType::kGet, .blocks = {block}}).result, BlockResult::kOk);
    EXPECT_EQ(rig.worker().Read(5), AfterLoss(PageOf(part), 4));
  }
  const BlockSpec outside{.digest = DigestNumber(1), .part = 2};
  EXPECT_EQ(rig.Ask({.type = WireType::kGet, .blocks = {outside}}).result, BlockResult::kInvalid);
}

TEST(EngineCodecTest, APageOfAnUnknownCodecIsAMissUntilABindingBringsAReader) {
  Rig rig;
  rig.Put(1, PageOf(1));
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, rig.Bind(CodecKind::kRaw)).ok());
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kMiss);
  LayoutBinding both = rig.Bind(CodecKind::kRaw);
  both.readers = rig.Bind(CodecKind::kCrumbInt2).ladder;
  ASSERT_TRUE(rig.engine->BindLayout(kLayout, both).ok());
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, AfterLoss(PageOf(1), 4));
}

TEST(EngineCodecTest, AMemoryFaultInAStoredPageIsAMissAndNeverAHit) {
  Rig rig;
  rig.Put(1, PageOf(1));
  for (uint8_t& byte : rig.pool->arena().subspan(kPageHeaderBytes + 50, 1)) byte ^= 1;
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().checksum_failures_dram, 1u);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  rig.ExpectAtRest();
}

}  // namespace
}  // namespace crumb::testing
