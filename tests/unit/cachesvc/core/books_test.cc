// What the engine keeps for every page: kinds that pages share, marks of flushes, and what a
// session leaves behind, each at its bound.
#include <gtest/gtest.h>

#include <vector>

#include "cachesvc/core/page_kinds.h"
#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

using core::KindId;
using core::kKindsMax;
using core::kNoKind;
using core::PageKind;
using core::PageKinds;

TEST(PageKindsTest, AKindLivesWhileItHasPages) {
  PageKinds kinds;
  const KindId a = kinds.Take({.codec_id = 1, .raw_bytes = 7});
  const KindId b = kinds.Take({.codec_id = 2});
  EXPECT_NE(a, b);
  EXPECT_EQ(kinds.Take({.codec_id = 1, .raw_bytes = 7}), a);
  EXPECT_EQ(kinds[a].raw_bytes, 7u);
  EXPECT_EQ(kinds.size(), 2u);
  kinds.Give(a);
  EXPECT_EQ(kinds.size(), 2u);
  kinds.Give(a);
  EXPECT_EQ(kinds.size(), 1u);
  const KindId c = kinds.Take({.codec_id = 3});
  EXPECT_EQ(c, a) << "numbers are used again";
  EXPECT_EQ(kinds[c].codec_id, 3u);
  EXPECT_EQ(kinds[b].codec_id, 2u);
}

TEST(PageKindsTest, NoMoreThanTheBoundAndRoomAgainWhenOneGoes) {
  PageKinds kinds;
  for (uint64_t i = 1; i <= kKindsMax; ++i) ASSERT_NE(kinds.Take({.codec_id = i}), kNoKind);
  EXPECT_EQ(kinds.Take({.codec_id = kKindsMax + 1}), kNoKind);
  const KindId old = kinds.Take({.codec_id = 5});
  EXPECT_NE(old, kNoKind) << "a kind that is there";
  kinds.Give(old);
  kinds.Give(old);
  EXPECT_EQ(kinds.Take({.codec_id = kKindsMax + 1}), old);
}

// Records as a recovery reports them, under keys of the rig's layout.
RecoveredRecord RecordOf(const Rig& rig, uint64_t number, uint64_t codec_id) {
  const KeyDeriver deriver(ClusterSecret{}, "t", rig.layout->hash());
  RecoveredRecord record;
  record.header.key = deriver.Derive(DigestNumber(number), 0);
  record.header.codec_id = codec_id;
  record.header.identity_prefix = rig.layout->hash().prefix64();
  record.header.tenant_prefix = TenantPrefix("t");
  record.header.token_count = kTokens;
  record.header.payload_bytes = record.header.raw_bytes = kRawBytes;
  record.location = {.segment = static_cast<uint32_t>(number / 16384),
                     .generation = 1,
                     .offset_blocks = static_cast<uint32_t>(number % 16384) * 3,
                     .record_bytes = static_cast<uint32_t>(PageSlotBytes(kRawBytes))};
  return record;
}

TEST(EngineBooksTest, AKindTooManyIsRefusedAndLeavesNoTrace) {
  Rig rig;
  for (uint64_t i = 0; i < kKindsMax; ++i) {
    rig.engine->recovery_sink()->OnRecords({RecordOf(rig, i, 1'000'000 + i)});
  }
  EXPECT_EQ(rig.engine->stats().index_entries, kKindsMax);
  rig.engine->recovery_sink()->OnRecords({RecordOf(rig, kKindsMax, 1)});
  EXPECT_EQ(rig.engine->stats().index_entries, kKindsMax) << "not known, and nothing hurt";
  const uint64_t key = kKindsMax + 1;
  EXPECT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kNoSpace);
  EXPECT_EQ(rig.Lookup(key).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().pool_pages, 0u);
  rig.ExpectAtRest();
  rig.engine->Flush({}, [](const absl::Status&) {});
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().index_entries, 0u);
  EXPECT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
}

// A sweep takes turns. What comes under it stays, also where the sweep has yet to pass, and is
// nothing special for the next one.
TEST(EngineBooksTest, APageThatComesDuringAFlushStaysAndTheNextFlushTakesIt) {
  RigOptions options;
  options.nvme_bytes = 8 << 20;
  Rig rig(options);
  for (uint64_t i = 1; i <= 10'000; ++i) {
    rig.engine->recovery_sink()->OnRecords({RecordOf(rig, i, 1)});
  }
  const uint64_t key = 20'000;  // has the last entry, which is the first to be used again
  ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  for (int round = 0; round < 20; ++round) {
    bool done = false;
    FlushRequest request;
    request.tenant = "t";
    rig.engine->Flush(request, [&done](const absl::Status&) { done = true; });
    const RequestSpec lookup{.type = WireType::kLookup, .blocks = {{.digest = DigestNumber(key)}}};
    const uint64_t gone = rig.worker().Send(lookup);
    rig.worker().Fill(0, PageOf(key));
    const uint64_t put = rig.worker().Send({.blocks = {{.digest = DigestNumber(key)}}});
    rig.Settle();
    ASSERT_TRUE(done);
    EXPECT_EQ(rig.worker().Answer(gone).result, BlockResult::kMiss) << round;
    EXPECT_EQ(rig.worker().Answer(put).result, BlockResult::kOk) << round;
    EXPECT_EQ(rig.Lookup(key).result, BlockResult::kOk) << round;
    EXPECT_EQ(rig.engine->stats().index_entries, 1u);
    for (uint64_t i = 1; i <= 10'000; ++i) {
      rig.engine->recovery_sink()->OnRecords({RecordOf(rig, i, 1)});
    }
  }
}

// A session with very many pins dies: the shard lets them go a little per turn, and serves others
// in between.
TEST(EngineBooksTest, ASessionWithVeryManyPinsIsClosedALittlePerTurn) {
  Rig rig;
  rig.AddWorker({.session = 2});
  constexpr uint64_t kPinned = 5000;
  std::vector<Digest> digests;
  for (uint64_t i = 1; i <= kPinned; ++i) {
    rig.engine->recovery_sink()->OnRecords({RecordOf(rig, i, 1)});
    digests.push_back(DigestNumber(i));
  }
  rig.engine->Pin(
      {.layout_handle = kLayout, .session = {2}, .digests = digests, .ttl_us = 1'000'000});
  ASSERT_EQ(rig.engine->stats().pins, kPinned);
  rig.engine->CloseSession({2});
  EXPECT_EQ(rig.engine->stats().sessions, 1u);
  EXPECT_FALSE(rig.engine->OpenSession({2}, "t").ok()) << "its pins are still there";
  uint64_t left = rig.engine->stats().pins, most = 0;
  ASSERT_GT(left, kPinned / 2);
  const uint64_t other =
      rig.worker().Send({.type = WireType::kLookup, .blocks = {{.digest = DigestNumber(1)}}});
  for (int turn = 0; turn < 100 && left > 0; ++turn) {
    rig.Turn();
    most = std::max(most, left - rig.engine->stats().pins);
    left = rig.engine->stats().pins;
    if (turn == 2) {
      EXPECT_TRUE(rig.worker().Answered(other));
    }
  }
  EXPECT_EQ(left, 0u);
  EXPECT_LE(most, 512u);
  EXPECT_TRUE(rig.engine->OpenSession({2}, "t").ok());
}

// All pins of one time end at once, without a turn that takes them all.
TEST(EngineBooksTest, VeryManyPinsThatExpireTogetherGoALittlePerTurn) {
  Rig rig;
  std::vector<Digest> digests;
  for (uint64_t i = 1; i <= 5000; ++i) {
    rig.engine->recovery_sink()->OnRecords({RecordOf(rig, i, 1)});
    digests.push_back(DigestNumber(i));
  }
  rig.engine->Pin(
      {.layout_handle = kLayout, .session = {1}, .digests = digests, .ttl_us = 1'000'000});
  rig.clock.Advance(1'000'000);
  rig.Turn();
  EXPECT_GE(rig.engine->stats().pins, 4000u);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().pins, 0u);
}

// Pins of pages on disk alone hold when such a page comes to memory.
TEST(EngineBooksTest, APinOfAPageOnDiskHoldsItOnceItIsInMemory) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  FillMemory(rig);
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  const PinRequest pin{
      .layout_handle = kLayout, .session = {1}, .digests = {DigestNumber(1)}, .ttl_us = 1'000'000};
  EXPECT_EQ(rig.engine->Pin(pin)[0], BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
  ExpectHit(rig, 1, Tier::kNvme);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 1u);
  FillMemory(rig, 2000);
  FillMemory(rig, 3000);
  ExpectHit(rig, 1, Tier::kDram);
  rig.Delete(1);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
  rig.Put(1, PageOf(1));  // another life of the key, maybe in the same entry: not pinned
  EXPECT_EQ(rig.engine->stats().pool_pinned, 0u);
  rig.clock.Advance(1'000'000);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().pins, 0u);
}

// One raw layout of pages of so many tokens, and memory for one page of it.
class OddPages {
 public:
  static constexpr uint32_t kHandle = 7;

  OddPages(Rig* rig, uint32_t tokens) : rig_(*rig), tokens_(tokens) {
    Identity identity = SmallIdentity();
    identity.page_tokens = tokens;
    LayoutBinding binding;
    binding.layout = std::make_shared<const Layout>(Layout::Make(identity).value());
    binding.tenant = "t";
    const PartShape& part = binding.layout->parts()[0];
    const auto raw = CodecDescriptor::Default(CodecKind::kRaw, Sha256{});
    binding.ladder.push_back({PageCodec::Create(part, raw, nullptr).value()});
    binding.readers.emplace_back();
    memory_.resize(part.raw_bytes);
    EXPECT_TRUE(rig_.engine->BindLayout(kHandle, std::move(binding)).ok());
    RegionSetSpec spec;
    spec.regions.push_back({.address = reinterpret_cast<uint64_t>(memory_.data()),
                            .bytes = memory_.size(),
                            .rkey = {}});
    spec.slots = 1;
    spec.slot_bytes = memory_.size();
    const SessionId session = rig_.worker().session;
    EXPECT_TRUE(rig_.engine->RegisterRegions(session, kHandle, kHandle, spec).ok());
  }

  WireBlockReply Ask(WireType type, uint64_t key, uint32_t count) {
    RequestSpec spec{.type = type, .layout = kHandle, .region_set = kHandle};
    spec.blocks = {
        {.digest = DigestNumber(key), .token_count = static_cast<uint16_t>(count), .slot = 0}};
    return rig_.Ask(spec);
  }
  WireBlockReply Put(uint64_t key, uint32_t count) {
    const std::vector<uint8_t> page = Pattern(key, tokens_);
    std::copy(page.begin(), page.end(), memory_.begin());  // it is lent: it stays where it is
    return Ask(WireType::kPut, key, count);
  }
  void ExpectBack(uint64_t key, uint32_t count, Tier tier) {
    std::fill(memory_.begin(), memory_.end(), uint8_t{0xee});
    const WireBlockReply reply = Ask(WireType::kGet, key, count);
    ASSERT_EQ(reply.result, BlockResult::kOk) << tokens_ << " tokens, " << count;
    EXPECT_EQ(reply.tier, tier);
    EXPECT_TRUE(memory_ == Pattern(key, count)) << tokens_ << " tokens, " << count;
  }

 private:
  // Rows past the count are zero.
  std::vector<uint8_t> Pattern(uint64_t key, uint32_t count) const {
    constexpr size_t kRow = 128 * 2;
    std::vector<uint8_t> page(memory_.size());
    for (size_t row = 0; row < page.size() / kRow; ++row) {
      if (row % tokens_ >= count) continue;
      for (size_t i = 0; i < kRow; ++i) {
        page[row * kRow + i] = static_cast<uint8_t>((key * 31 + row * 7 + i) & 0x3f);
      }
    }
    return page;
  }

  Rig& rig_;
  const uint32_t tokens_;
  std::vector<uint8_t> memory_;
};

TEST(EngineBooksTest, PagesOfAnySizeAndPartialOnesComeBackFromBothTiers) {
  for (const uint32_t tokens : {1u, 3u, 16u, 17u, 64u, 1000u}) {
    RigOptions options;
    options.main_bytes = 2 << 20;
    options.staging_bytes = 2 << 20;
    options.nvme_bytes = 32 << 20;
    Rig rig(options);
    OddPages pages(&rig, tokens);
    const uint32_t part = tokens > 1 ? tokens - 1 : 1;
    ASSERT_EQ(pages.Put(1, 0).result, BlockResult::kOk) << tokens;
    ASSERT_EQ(pages.Put(2, part).result, BlockResult::kOk) << tokens;
    EXPECT_NE(pages.Put(3, tokens + 1).result, BlockResult::kOk) << "more than a page has";
    pages.ExpectBack(1, tokens, Tier::kDram);
    pages.ExpectBack(2, part, Tier::kDram);
    for (uint64_t key = 100; key < 3000; ++key) {
      if (pages.Ask(WireType::kLookup, 2, 0).tier == Tier::kNvme &&
          pages.Ask(WireType::kLookup, 1, 0).tier == Tier::kNvme) {
        break;
      }
      ASSERT_EQ(pages.Put(key, 0).result, BlockResult::kOk);
      pages.Ask(WireType::kGet, key, 0);
    }
    pages.ExpectBack(1, tokens, Tier::kNvme);
    pages.ExpectBack(2, part, Tier::kNvme);
    if (tokens > 1) {
      EXPECT_EQ(pages.Ask(WireType::kLookup, 2, tokens).result, BlockResult::kMiss);
    }
    const EngineStats stats = rig.engine->stats();
    EXPECT_LE(stats.pool_used_bytes, stats.pool_capacity_bytes);
    rig.ExpectAtRest();
  }
}

}  // namespace
}  // namespace crumb::testing
