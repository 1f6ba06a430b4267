// What a worker may ask: every refusal names the block and the field.
#include "client/src/request_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb::client {
namespace {

using testing::HasSubstr;

LayoutSpec Spec() {
  LayoutSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.page_tokens = 16;
  LayerGroup& group = spec.groups.emplace_back();
  group.kv_heads = 2;
  group.k_dim = 64;
  group.v_dim = 64;
  group.layer_ids = {0, 1};
  return spec;
}

class Build : public testing::Test {
 protected:
  void SetUp() override {
    auto shape = CheckSpec(Spec());
    ASSERT_TRUE(shape.ok()) << shape.status();
    layout_.shape = std::make_shared<const crumb::Layout>(*std::move(shape));
    layout_.daemon_handle = 77;
    raw_bytes_ = layout_.shape->parts()[0].raw_bytes;
    memory_.resize(3 * raw_bytes_);
    auto lent = LentMemory::Make(
        LentMemory::Pages{
            .base = memory_.data(), .bytes = memory_.size(), .slot_bytes = raw_bytes_},
        *layout_.shape);
    ASSERT_TRUE(lent.ok()) << lent.status();
    lent_ = {.layout = 1, .memory = *lent};
    blocks_.resize(1);
    blocks_[0].key = "key";
  }

  absl::StatusOr<std::shared_ptr<PlaneRequest>> Run(WireType type) {
    BuildInput input;
    input.type = type;
    input.layout = &layout_;
    input.lent = type == WireType::kPut || type == WireType::kGet ? &lent_ : nullptr;
    input.region_set = 5;
    input.blocks = &blocks_;
    input.options = options_;
    input.deadline_ms_default = 1234;
    LentMemory::Scratch scratch;
    auto request = std::make_shared<PlaneRequest>();
    CRUMB_TRY(BuildRequest(input, request.get()));
    return request;
  }
  std::string Refusal(WireType type) {
    const auto request = Run(type);
    return request.ok() ? "accepted" : std::string(request.status().message());
  }

  LayoutEntry layout_;
  uint64_t raw_bytes_ = 0;
  std::vector<uint8_t> memory_;
  Lent lent_;
  std::vector<Block> blocks_;
  RequestOptions options_;
};

TEST_F(Build, CarriesWhatWasAsked) {
  blocks_.resize(2);
  blocks_[1].key = "other";
  blocks_[1].parent = "key";
  blocks_[1].token_start = 16;
  blocks_[1].token_count = 9;
  blocks_[1].slot = 2;
  blocks_[1].provenance = Provenance::kDecode;
  options_.durable = true;
  const auto request = Run(WireType::kPut);
  ASSERT_TRUE(request.ok()) << request.status();
  const PlaneRequest& got = **request;
  EXPECT_EQ(got.flags, kWireFlagDurable);
  EXPECT_EQ(got.layout_handle, 77u);
  EXPECT_EQ(got.region_set, 5u);
  EXPECT_EQ(got.deadline_ms, 1234u);
  EXPECT_EQ(got.slots, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(got.raw_bytes[1], raw_bytes_);
  EXPECT_EQ(got.blocks[0].digest, DigestOf(AsBytes("key")));
  EXPECT_EQ(got.blocks[0].parent, Digest{});
  EXPECT_EQ(got.blocks[1].parent, DigestOf(AsBytes("key")));
  EXPECT_EQ(got.blocks[1].token_start, 16u);
  EXPECT_EQ(got.blocks[1].token_count, 9u);
  EXPECT_EQ(got.blocks[1].provenance, crumb::Provenance::kDecode);
  EXPECT_EQ(got.blocks[1].value_bytes, 0u);
}

TEST_F(Build, FlagsBelongToTheirVerb) {
  options_.durable = true;
  options_.wait_ms = 50;
  options_.stop_at_gap = true;
  EXPECT_EQ((*Run(WireType::kPut))->flags, kWireFlagDurable);
  EXPECT_EQ((*Run(WireType::kGet))->flags, kWireFlagWait);
  EXPECT_EQ((*Run(WireType::kGet))->wait_ms, 50u);
  EXPECT_EQ((*Run(WireType::kLookup))->flags, kWireFlagStopAtGap);
  EXPECT_EQ((*Run(WireType::kDelete))->flags, 0u);
  EXPECT_EQ((*Run(WireType::kPut))->wait_ms, 0u);
}

TEST_F(Build, KeysHave1To256Bytes) {
  const std::string longest(256, 'k');
  const std::string too_long(257, 'k');
  blocks_[0].key = longest;
  EXPECT_EQ(Refusal(WireType::kLookup), "accepted");
  blocks_[0].key = too_long;
  EXPECT_THAT(Refusal(WireType::kLookup), HasSubstr("block 0: a key of 257 bytes"));
  blocks_[0].key = "";
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("block 0: a key of 0 bytes"));
  blocks_[0].key = std::string_view("\0", 1);
  EXPECT_EQ(Refusal(WireType::kLookup), "accepted");
  blocks_[0].parent = too_long;
  EXPECT_THAT(Refusal(WireType::kPut), HasSubstr("257"));
}

TEST_F(Build, CountsAndRangesAreChecked) {
  blocks_.clear();
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("0 blocks"));
  blocks_.resize(257);
  for (Block& block : blocks_) block.key = "k";
  EXPECT_THAT(Refusal(WireType::kLookup), HasSubstr("257 blocks"));
  blocks_.resize(1);
  blocks_[0].part = 1;
  EXPECT_THAT(Refusal(WireType::kLookup), HasSubstr("part 1"));
  blocks_[0].part = 0;
  blocks_[0].token_count = 17;
  EXPECT_THAT(Refusal(WireType::kPut), HasSubstr("token_count 17"));
  blocks_[0].token_count = 0;
  blocks_[0].slot = 3;
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("slot 3"));
  blocks_[0].slot = 0;
  const uint32_t two[] = {0, 1};
  blocks_[0].slots = two;
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("2 slots"));
  blocks_[0].slots = {};
  options_.deadline_ms = 600'001;
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("deadline_ms"));
  options_.deadline_ms = 0;
  options_.form = static_cast<Form>(9);
  EXPECT_THAT(Refusal(WireType::kGet), HasSubstr("form"));
}

TEST_F(Build, PackedPutsNameTheirLength) {
  options_.form = Form::kPacked;
  EXPECT_THAT(Refusal(WireType::kPut), HasSubstr("value_bytes"));
  blocks_[0].value_bytes = static_cast<uint32_t>(raw_bytes_ + 1);
  EXPECT_THAT(Refusal(WireType::kPut), HasSubstr("does not fit"));
  blocks_[0].value_bytes = 100;
  const auto request = Run(WireType::kPut);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ((*request)->blocks[0].value_bytes, 100u);
  EXPECT_EQ((*request)->raw_bytes[0], 100u);
  EXPECT_EQ(Refusal(WireType::kGet), "accepted");
}

TEST_F(Build, ARawPageMustFitItsSlot) {
  auto small = LentMemory::Make(
      LentMemory::Pages{
          .base = memory_.data(), .bytes = memory_.size(), .slot_bytes = raw_bytes_ - 1},
      *layout_.shape);
  ASSERT_TRUE(small.ok());
  lent_.memory = *small;
  EXPECT_THAT(Refusal(WireType::kPut), HasSubstr("does not fit slots"));
}

}  // namespace
}  // namespace crumb::client
