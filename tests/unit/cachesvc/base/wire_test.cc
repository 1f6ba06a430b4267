// Wire messages: round trips and the rules of every field.
#include "cachesvc/base/wire.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/cachesvc/base/wire_samples.h"

namespace crumb {
namespace {

using ::crumb::testing::LookupMessage;
using ::crumb::testing::PutMessage;
using ::crumb::testing::ReplyMessage;
using ::crumb::testing::Reseal;

TEST(Wire, PutRoundTrips) {
  const std::vector<uint8_t> message = PutMessage();
  WireRequest request;
  ASSERT_EQ(ParseRequest(message, &request), WireCheck::kOk);
  EXPECT_EQ(request.header.type, WireType::kPut);
  EXPECT_EQ(request.header.request_id, 0x1122334455667788u);
  EXPECT_EQ(request.header.block_count, 2);
  EXPECT_EQ(request.block(1).token_start, 64u);
  EXPECT_EQ(request.block(1).provenance, Provenance::kDecode);
  EXPECT_EQ(request.slot(0, 1), 8u);
  EXPECT_EQ(request.slot(1, 3), 14u);
}

TEST(Wire, ReplyRoundTrips) {
  const std::vector<uint8_t> message = ReplyMessage();
  WireReply reply;
  ASSERT_EQ(ParseReply(message, &reply), WireCheck::kOk);
  EXPECT_EQ(reply.header.request_id, 99u);
  EXPECT_EQ(reply.block(0).result, BlockResult::kOk);
  EXPECT_EQ(reply.block(0).tier, Tier::kNvme);
  EXPECT_EQ(reply.block(1).result, BlockResult::kMiss);
}

TEST(Wire, MessagesWithoutBlocksRoundTrip) {
  for (WireType type : {WireType::kCancel, WireType::kHello, WireType::kGoodbye}) {
    std::vector<uint8_t> message(RequestBytes(0, 0));
    WriteWireHeader({.type = type, .request_id = 5}, absl::MakeSpan(message));
    FinishWireMessage(absl::MakeSpan(message));
    WireRequest request;
    EXPECT_EQ(ParseRequest(message, &request), WireCheck::kOk);
    EXPECT_EQ(request.header.type, type);
  }
}

TEST(Wire, SizesAreBounded) {
  EXPECT_EQ(RequestBytes(kBlocksPerRequestMax + 1, 0), 0u);
  EXPECT_EQ(RequestBytes(1, kSlotsPerBlockMax + 1), 0u);
  EXPECT_EQ(ReplyBytes(kBlocksPerRequestMax + 1), 0u);
  EXPECT_EQ(RequestBytes(2, 3), 64u + 2 * (48 + 12));
  EXPECT_EQ(ReplyBytes(3), 64u + 48);
  EXPECT_LE(RequestBytes(kBlocksPerRequestMax, kSlotsPerBlockMax), kWireMessageBytesMax);
}

struct FieldCase {
  const char* name;
  std::function<void(WireHeader&)> header;
  std::function<void(WireBlock&)> block;
  WireCheck check = WireCheck::kBadField;
};

// Every case is sealed again: the rule itself must refuse it, not the checksum.
TEST(Wire, RefusesEveryFieldOutOfRange) {
  const std::vector<FieldCase> cases = {
      {"magic", [](WireHeader& h) { h.magic = 1; }, nullptr, WireCheck::kBadMagic},
      {"version", [](WireHeader& h) { h.version = 2; }, nullptr, WireCheck::kBadVersion},
      {"type 0", [](WireHeader& h) { h.type = static_cast<WireType>(0); }, nullptr},
      {"type 9", [](WireHeader& h) { h.type = static_cast<WireType>(9); }, nullptr},
      {"type reply", [](WireHeader& h) { h.type = WireType::kReply; }, nullptr},
      {"unknown flag", [](WireHeader& h) { h.flags = 8; }, nullptr},
      {"flag of lookup", [](WireHeader& h) { h.flags = kWireFlagStopAtGap; }, nullptr},
      {"flag of get", [](WireHeader& h) { h.flags = kWireFlagWait; }, nullptr},
      {"fewer blocks", [](WireHeader& h) { h.block_count = 1; }, nullptr, WireCheck::kBadLength},
      {"no blocks", [](WireHeader& h) { h.block_count = 0; }, nullptr},
      {"too many blocks", [](WireHeader& h) { h.block_count = 257; }, nullptr},
      {"more slots", [](WireHeader& h) { h.slots_per_block = 5; }, nullptr, WireCheck::kBadLength},
      {"no slots", [](WireHeader& h) { h.slots_per_block = 0; }, nullptr},
      {"too many slots", [](WireHeader& h) { h.slots_per_block = 65; }, nullptr},
      {"form", [](WireHeader& h) { h.form = static_cast<PageForm>(3); }, nullptr},
      {"packed without length", [](WireHeader& h) { h.form = PageForm::kPacked; }, nullptr},
      {"reserved0", [](WireHeader& h) { h.reserved0 = 1; }, nullptr},
      {"lookup with slots", [](WireHeader& h) { h.type = WireType::kLookup; }, nullptr},
      {"cancel with blocks", [](WireHeader& h) { h.type = WireType::kCancel; }, nullptr},
      {"provenance", nullptr, [](WireBlock& b) { b.provenance = static_cast<Provenance>(3); }},
      {"block reserved0", nullptr, [](WireBlock& b) { b.reserved0 = 1; }},
      {"codec of a raw page", nullptr, [](WireBlock& b) { b.codec_tag = 1; }},
      {"raw with length", nullptr, [](WireBlock& b) { b.value_bytes = 1; }},
  };
  for (const FieldCase& bad : cases) {
    std::vector<uint8_t> message = PutMessage();
    if (bad.header) {
      WireHeader header;
      std::memcpy(static_cast<void*>(&header), message.data(), sizeof(header));
      bad.header(header);
      WriteWireHeader(header, absl::MakeSpan(message));
    } else {
      WireBlock block;
      uint8_t* place = message.data() + sizeof(WireHeader);
      std::memcpy(static_cast<void*>(&block), place, sizeof(block));
      bad.block(block);
      std::memcpy(place, &block, sizeof(block));
    }
    Reseal(message);
    WireRequest request;
    EXPECT_EQ(ParseRequest(message, &request), bad.check) << bad.name;
  }
}

TEST(Wire, RefusesRepliesOutOfRange) {
  const std::vector<std::function<void(WireBlockReply&)>> cases = {
      [](WireBlockReply& b) { b.result = static_cast<BlockResult>(kBlockResultCount); },
      [](WireBlockReply& b) { b.tier = static_cast<Tier>(5); },
      [](WireBlockReply& b) { b.precision = static_cast<Precision>(4); },
  };
  for (const auto& change : cases) {
    std::vector<uint8_t> message = ReplyMessage();
    WireReply reply;
    ASSERT_EQ(ParseReply(message, &reply), WireCheck::kOk);
    WireBlockReply block = reply.block(1);
    change(block);
    WriteWireBlockReply(1, block, absl::MakeSpan(message));
    Reseal(message);
    EXPECT_EQ(ParseReply(message, &reply), WireCheck::kBadField);
  }
  std::vector<uint8_t> put = PutMessage();
  WireReply reply;
  EXPECT_EQ(ParseReply(put, &reply), WireCheck::kBadField);
}

TEST(Wire, LookupAllowsItsFlagOnly) {
  std::vector<uint8_t> message = LookupMessage();
  WireRequest request;
  ASSERT_EQ(ParseRequest(message, &request), WireCheck::kOk);
  EXPECT_EQ(request.header.flags, kWireFlagStopAtGap);
  WireHeader header = request.header;
  header.flags = kWireFlagDurable;
  WriteWireHeader(header, absl::MakeSpan(message));
  Reseal(message);
  EXPECT_EQ(ParseRequest(message, &request), WireCheck::kBadField);
}

TEST(Wire, RefusesMessagesOverTheMaximum) {
  std::vector<uint8_t> message(kWireMessageBytesMax + 1);
  WireRequest request;
  EXPECT_EQ(ParseRequest(message, &request), WireCheck::kBadLength);
  EXPECT_EQ(ParseRequest(Bytes(), &request), WireCheck::kShort);
}

TEST(Wire, ChecksAreNamed) {
  for (int i = 0; i <= static_cast<int>(WireCheck::kBadChecksum); ++i) {
    EXPECT_STRNE(ToString(static_cast<WireCheck>(i)), "unknown");
  }
}

}  // namespace
}  // namespace crumb
