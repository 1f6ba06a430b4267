// Requests in flight: answers, verification, deadlines that leave orphans, and loss.
#include "client/src/request_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cachesvc/base/hash.h"

namespace crumb::client {
namespace {

constexpr uint64_t kValueBytes = 64;

crumb::Layout MakeLayout() {
  Identity identity;
  identity.model = "m";
  identity.revision = "r";
  identity.weights_dtype = "none";
  identity.dtype = RawDtype::kOpaque;
  identity.page_tokens = 1;
  AttentionGroup& group = identity.groups.emplace_back();
  group.kind = AttentionKind::kMha;
  group.kv_heads = 1;
  group.k_dim = kValueBytes;
  group.layer_ids = {0};
  auto layout = crumb::Layout::Make(std::move(identity));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

class Table : public testing::Test {
 protected:
  Table() : table_({.requests = 4}), bytes_(4 * kValueBytes, 7) {
    auto memory = LentMemory::Make(
        LentMemory::Pages{.base = bytes_.data(), .bytes = bytes_.size(), .slot_bytes = kValueBytes},
        MakeLayout());
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *memory;
  }

  RequestTable::Entry Make(uint64_t id, WireType type, std::vector<uint32_t> slots) {
    auto request = std::make_shared<PlaneRequest>();
    request->id = id;
    request->type = type;
    request->region_set = 1;
    request->slots_per_block = slots.empty() ? 0 : 1;
    if (!slots.empty()) request->memory = memory_;
    request->blocks.resize(slots.empty() ? 3 : slots.size());
    request->raw_bytes.assign(request->blocks.size(), kValueBytes);
    request->slots = std::move(slots);
    return {.request = request, .submitted_us = id * 10, .give_up_us = id * 100};
  }

  WireBlockReply Good(uint32_t slot) const {
    WireBlockReply reply;
    reply.result = BlockResult::kOk;
    reply.tier = crumb::Tier::kDram;
    reply.value_bytes = kValueBytes;
    reply.checksum = Xxh3(Bytes(bytes_.data() + slot * kValueBytes, kValueBytes));
    return reply;
  }

  RequestTable::Answer Answer(PlaneReply reply) { return table_.Finish(reply, &out_); }
  void Expire(uint64_t now_us) { table_.Expire(now_us, &out_, &expired_); }

  RequestTable table_;
  std::vector<uint64_t> expired_;
  std::vector<uint8_t> bytes_;
  std::shared_ptr<const LentMemory> memory_;
  std::vector<Completion> out_;
};

TEST_F(Table, AGoodAnswerIsAHit) {
  table_.Add(Make(1, WireType::kGet, {2}));
  EXPECT_EQ(Answer({.id = 1, .verified = false, .blocks = {Good(2)}, .notes = {}}),
            RequestTable::Answer::kInTime);
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].ticket, 1u);
  EXPECT_EQ(out_[0].results[0].code, Code::kOk);
  EXPECT_EQ(out_[0].results[0].tier, Tier::kDram);
  EXPECT_EQ(out_[0].results[0].value_bytes, kValueBytes);
  EXPECT_EQ(out_[0].prefix, 1u);
  EXPECT_TRUE(table_.empty());
}

TEST_F(Table, BytesThatDoNotMatchTheirChecksumAreCorrupt) {
  table_.Add(Make(1, WireType::kGet, {0, 1}));
  const WireBlockReply first = Good(0);
  const WireBlockReply second = Good(1);
  bytes_[kValueBytes + 63] ^= 1;
  Answer({.id = 1, .verified = false, .blocks = {first, second}, .notes = {}});
  EXPECT_EQ(out_[0].results[0].code, Code::kOk);
  EXPECT_EQ(out_[0].results[1].code, Code::kCorrupt);
  EXPECT_EQ(out_[0].prefix, 1u);
}

TEST_F(Table, VerificationCanBeLeftToTheWorker) {
  RequestTable::Entry entry = Make(1, WireType::kGet, {0});
  std::const_pointer_cast<PlaneRequest>(entry.request)->verify = false;
  table_.Add(std::move(entry));
  WireBlockReply reply = Good(0);
  reply.checksum ^= 1;
  Answer({.id = 1, .verified = false, .blocks = {reply}, .notes = {}});
  EXPECT_EQ(out_[0].results[0].code, Code::kOk);
}

TEST_F(Table, AnyOtherLengthIsCorrupt) {
  for (uint32_t bytes : {0u, 1u, 63u, 65u, 0xffffffffu}) {
    table_.Add(Make(1, WireType::kGet, {3}));
    WireBlockReply reply = Good(3);
    reply.value_bytes = bytes;
    Answer({.id = 1, .verified = false, .blocks = {reply}, .notes = {}});
    EXPECT_EQ(out_.back().results[0].code, Code::kCorrupt) << bytes;
  }
}

TEST_F(Table, PackedValuesMayBeShorterThanTheSlotAndNotLonger) {
  for (uint32_t bytes : {1u, 64u, 65u}) {
    RequestTable::Entry entry = Make(1, WireType::kGet, {3});
    auto request = std::make_shared<PlaneRequest>(*entry.request);
    request->form = PageForm::kPacked;
    entry.request = request;
    table_.Add(std::move(entry));
    WireBlockReply reply = Good(3);
    reply.value_bytes = bytes;
    if (bytes <= kValueBytes) reply.checksum = Xxh3(Bytes(bytes_.data() + 3 * kValueBytes, bytes));
    Answer({.id = 1, .verified = false, .blocks = {reply}, .notes = {}});
    EXPECT_EQ(out_.back().results[0].code, bytes <= kValueBytes ? Code::kOk : Code::kCorrupt);
  }
}

TEST_F(Table, AnAnswerWithTheWrongNumberOfBlocksIsNoHit) {
  table_.Add(Make(1, WireType::kGet, {0, 1}));
  Answer({.id = 1, .verified = false, .blocks = {Good(0)}, .notes = {}});
  EXPECT_EQ(out_[0].results.size(), 2u);
  EXPECT_EQ(out_[0].results[0].code, Code::kCorrupt);
}

TEST_F(Table, AShortLookupIsMissesFromThere) {
  table_.Add(Make(1, WireType::kLookup, {}));
  Answer({.id = 1, .verified = false, .blocks = {Good(0)}, .notes = {}});
  ASSERT_EQ(out_[0].results.size(), 3u);
  EXPECT_EQ(out_[0].results[0].code, Code::kOk);
  EXPECT_EQ(out_[0].results[1].code, Code::kMiss);
  EXPECT_EQ(out_[0].prefix, 1u);
}

TEST_F(Table, NumbersFromOutsideAreChecked) {
  table_.Add(Make(1, WireType::kLookup, {}));
  WireBlockReply wild;
  wild.result = static_cast<BlockResult>(200);
  wild.tier = static_cast<crumb::Tier>(200);
  wild.precision = static_cast<crumb::Precision>(200);
  Answer({.id = 1, .verified = false, .blocks = {wild, wild, wild}, .notes = {}});
  EXPECT_EQ(out_[0].results[0].code, Code::kInvalid);
  EXPECT_STRNE(ToString(out_[0].results[0].tier), "unknown");
  EXPECT_STRNE(ToString(out_[0].results[0].precision), "unknown");
}

TEST_F(Table, ANonFinitePageSaysWhere) {
  table_.Add(Make(1, WireType::kPut, {0}));
  WireBlockReply reply;
  reply.result = BlockResult::kNonFinite;
  reply.checksum = PackPlace({.layer_id = 17, .is_v = true, .head = 2, .token = 33});
  Answer({.id = 1, .verified = false, .blocks = {reply}, .notes = {}});
  EXPECT_THAT(out_[0].results[0].note, testing::HasSubstr("layer 17 V, head 2, token 33"));
}

TEST_F(Table, AnswersToNobodyAreDropped) {
  EXPECT_EQ(Answer({.id = 9, .verified = false, .blocks = {}, .notes = {}}),
            RequestTable::Answer::kUnknown);
  table_.Add(Make(1, WireType::kGet, {0}));
  Answer({.id = 1, .verified = false, .blocks = {Good(0)}, .notes = {}});
  EXPECT_EQ(Answer({.id = 1, .verified = false, .blocks = {Good(0)}, .notes = {}}),
            RequestTable::Answer::kUnknown);
  EXPECT_EQ(out_.size(), 1u);
}

TEST_F(Table, ATimeoutIsReportedOnceAndItsSlotsStayOwned) {
  table_.Add(Make(1, WireType::kGet, {2}));
  table_.Add(Make(2, WireType::kGet, {3}));
  EXPECT_EQ(table_.next_give_up_us(), 100u);
  Expire(99);
  EXPECT_TRUE(out_.empty());
  Expire(100);
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].code, Code::kTimeout);
  EXPECT_EQ(out_[0].results[0].code, Code::kTimeout);
  Expire(150);
  EXPECT_EQ(out_.size(), 1u);
  EXPECT_EQ(table_.in_flight(), 1u);
  EXPECT_EQ(table_.orphans(), 1u);
  EXPECT_TRUE(table_.OrphanOwnsSlot(1, 2));
  EXPECT_FALSE(table_.OrphanOwnsSlot(1, 3));
  EXPECT_FALSE(table_.OrphanOwnsSlot(2, 2));
  EXPECT_TRUE(table_.OwnsSlot(1, 3));
  EXPECT_TRUE(table_.OwnsRegionSet(1));
  // The late answer frees the slot and reports nothing a second time.
  EXPECT_EQ(Answer({.id = 1, .verified = false, .blocks = {Good(2)}, .notes = {}}),
            RequestTable::Answer::kLate);
  EXPECT_EQ(out_.size(), 1u);
  EXPECT_FALSE(table_.OrphanOwnsSlot(1, 2));
  EXPECT_EQ(table_.orphans(), 0u);
}

TEST_F(Table, LossEndsEverythingOnce) {
  table_.Add(Make(1, WireType::kGet, {2}));
  table_.Add(Make(2, WireType::kPut, {1}));
  Expire(100);
  out_.clear();
  table_.FailAll(Code::kUnavailable, &out_);
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].ticket, 2u);
  EXPECT_EQ(out_[0].code, Code::kUnavailable);
  EXPECT_EQ(out_[0].results[0].code, Code::kUnavailable);
  EXPECT_TRUE(table_.empty());
  EXPECT_FALSE(table_.OwnsRegionSet(1));
  EXPECT_EQ(table_.next_give_up_us(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(table_.oldest_us(), std::numeric_limits<uint64_t>::max());
}

TEST_F(Table, OrphansCountAgainstTheBound) {
  for (uint64_t id = 1; id <= 4; ++id) table_.Add(Make(id, WireType::kGet, {0}));
  EXPECT_TRUE(table_.full());
  Expire(1'000'000);
  EXPECT_EQ(table_.in_flight(), 0u);
  EXPECT_TRUE(table_.full());
}

}  // namespace
}  // namespace crumb::client
