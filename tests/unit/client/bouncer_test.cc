// Bounce areas and what travels through them: room, ownership, verification, abandonment.
#include "client/src/bouncer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "cachesvc/base/hash.h"
#include "client/src/layout_spec.h"
#include "client/src/shared_map.h"

namespace crumb::client {
namespace {

constexpr uint64_t kValue = 6000;  // two units

TEST(BounceAreaTest, HandsOutEveryByteOnceAndMixesSizes) {
  auto area = BounceArea::Create(16 * BounceArea::kUnit);
  ASSERT_TRUE(area.ok()) << area.status();
  std::set<uint8_t*> seen;
  const uint64_t sizes[] = {4096, 8192, 12'288};
  std::vector<std::pair<uint32_t, uint64_t>> taken;
  for (int i = 0;; ++i) {
    const uint64_t bytes = sizes[i % 3];
    const uint32_t slot = (*area)->Take(bytes);
    if (slot == BounceArea::kNone) break;
    taken.emplace_back(slot, bytes);
    const MutableBytes memory = (*area)->At(slot, bytes);
    for (uint64_t at = 0; at < bytes; at += BounceArea::kUnit) {
      EXPECT_TRUE(seen.insert(memory.data() + at).second);
    }
  }
  EXPECT_GE(taken.size(), 6u);
  for (const auto& [slot, bytes] : taken) (*area)->Give(slot, bytes);
  EXPECT_EQ((*area)->used_bytes(), 0u);
  EXPECT_EQ((*area)->Take(16 * BounceArea::kUnit), 0u);
  EXPECT_EQ((*area)->Take(BounceArea::kUnit), BounceArea::kNone);
}

TEST(SharedMemoryTest, IsSealedAndZeroed) {
  std::unique_ptr<SharedMemory> memory;
  ASSERT_TRUE(SharedMemory::Create(5000, &memory).ok());
  EXPECT_EQ(memory->bytes(), 8192u);
  EXPECT_EQ(memory->data()[4999], 0);
  EXPECT_NE(::ftruncate(memory->range().fd, 4096), 0);
  EXPECT_NE(::ftruncate(memory->range().fd, 1 << 20), 0);
  EXPECT_EQ(::fcntl(memory->range().fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
  EXPECT_EQ(SharedMemory::Create(0, &memory).code, Code::kInvalid);
}

TEST(SharedMapTest, FindsPartsOfRangesAndRefusesWhatIsNone) {
  std::unique_ptr<SharedMemory> memory;
  ASSERT_TRUE(SharedMemory::Create(16'384, &memory).ok());
  SharedMap map;
  const auto base = reinterpret_cast<uintptr_t>(memory->data());
  SharedRange part = memory->range();
  part.offset = 4096;
  part.address = memory->data() + 4096;
  part.bytes = 8192;
  ASSERT_TRUE(map.Add(part).ok());
  const auto found = map.Find(base + 5000, 1000);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->offset, 5000u);
  EXPECT_NE(found->fd, memory->range().fd);  // a duplicate of its own
  EXPECT_TRUE(map.Find(base + 4096, 8192).has_value());
  EXPECT_FALSE(map.Find(base + 4095, 10).has_value());
  EXPECT_FALSE(map.Find(base + 12'000, 1000).has_value());
  EXPECT_FALSE(map.Find(base + 5000, UINT64_MAX).has_value());
  EXPECT_FALSE(map.Add(memory->range()).ok());  // overlaps
  part.offset = 1;
  EXPECT_FALSE(map.Add(part).ok());
  part.offset = 12'288;  // passes the end
  part.address = memory->data() + (1 << 20);
  EXPECT_FALSE(map.Add(part).ok());
  part.fd = -1;
  EXPECT_FALSE(map.Add(part).ok());
}

class BouncerTest : public testing::Test {
 protected:
  BouncerTest() : bouncer_(8 * BounceArea::kUnit), memory_(4 * kValue) {
    LayoutSpec spec;
    spec.model = "m";
    spec.revision = "r";
    spec.dtype = "opaque";
    spec.rope_kind = "none";
    spec.page_tokens = 1;
    LayerGroup& group = spec.groups.emplace_back();
    group.kind = "mha";
    group.kv_heads = 1;
    group.k_dim = kValue;
    group.layer_ids = {0};
    auto layout = CheckSpec(spec);
    EXPECT_TRUE(layout.ok()) << layout.status();
    lent_ = *LentMemory::Make(
        LentMemory::Pages{.base = memory_.data(), .bytes = memory_.size(), .slot_bytes = kValue},
        *layout);
    auto set = bouncer_.SetFor(kValue);
    EXPECT_TRUE(set.ok());
    set_ = *set;
  }

  std::shared_ptr<PlaneRequest> Make(uint64_t id, WireType type, std::vector<uint32_t> slots) {
    auto request = std::make_shared<PlaneRequest>();
    request->id = id;
    request->type = type;
    request->memory = lent_;
    request->blocks.resize(slots.size());
    request->raw_bytes.assign(slots.size(), kValue);
    request->slots = std::move(slots);
    request->slots_per_block = 1;
    return request;
  }
  MutableBytes BounceOf(uint64_t id, size_t block) {
    return set_.area->At(bouncer_.SlotsOf(id)[block], set_.slot_bytes).subspan(0, kValue);
  }
  // What a daemon that pushed `fill` would answer.
  PlaneReply Push(uint64_t id, uint8_t fill) {
    const MutableBytes to = BounceOf(id, 0);
    std::fill(to.begin(), to.end(), fill);
    PlaneReply reply;
    reply.id = id;
    reply.blocks.push_back(
        {.result = BlockResult::kOk, .value_bytes = kValue, .checksum = Xxh3(to)});
    return reply;
  }
  bool SlotIs(uint32_t slot, uint8_t fill) {
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(slot * kValue);
    return std::all_of(begin, begin + kValue, [fill](uint8_t byte) { return byte == fill; });
  }

  Bouncer bouncer_;
  BounceSet set_;
  std::vector<uint8_t> memory_;
  std::shared_ptr<const LentMemory> lent_;
};

TEST_F(BouncerTest, APutIsGatheredAndAGetIsScatteredAndVerified) {
  std::fill(memory_.begin() + kValue, memory_.begin() + 2 * kValue, 7);
  ASSERT_EQ(bouncer_.Take(set_, Make(1, WireType::kPut, {1})), BlockResult::kOk);
  EXPECT_EQ(BounceOf(1, 0)[kValue - 1], 7);
  EXPECT_TRUE(bouncer_.Give(1, nullptr));
  ASSERT_EQ(bouncer_.Take(set_, Make(2, WireType::kGet, {2})), BlockResult::kOk);
  PlaneReply reply = Push(2, 9);
  EXPECT_TRUE(bouncer_.Give(2, &reply));
  EXPECT_TRUE(reply.verified);
  EXPECT_EQ(reply.blocks[0].result, BlockResult::kOk);
  EXPECT_TRUE(SlotIs(2, 9));
  EXPECT_TRUE(SlotIs(1, 7));
  EXPECT_EQ(bouncer_.used_bytes(), 0u);
  EXPECT_FALSE(bouncer_.Give(2, &reply));
}

TEST_F(BouncerTest, DamageAndFalseLengthsAreCorruptAndReachNoOtherMemory) {
  for (const uint32_t bytes : {0u, 1u, uint32_t{kValue} - 1, uint32_t{kValue} + 1, 0xffffffffu}) {
    ASSERT_EQ(bouncer_.Take(set_, Make(1, WireType::kGet, {1})), BlockResult::kOk);
    PlaneReply reply = Push(1, 9);
    reply.blocks[0].value_bytes = bytes;
    bouncer_.Give(1, &reply);
    EXPECT_EQ(reply.blocks[0].result, BlockResult::kCorrupt) << bytes;
    EXPECT_TRUE(SlotIs(1, 0) && SlotIs(2, 0));
  }
  ASSERT_EQ(bouncer_.Take(set_, Make(1, WireType::kGet, {1})), BlockResult::kOk);
  PlaneReply reply = Push(1, 9);
  BounceOf(1, 0)[5] ^= 1;
  // More blocks than were asked for are left to the table, which refuses them.
  reply.blocks.push_back(reply.blocks[0]);
  bouncer_.Give(1, &reply);
  EXPECT_EQ(reply.blocks[0].result, BlockResult::kCorrupt);
  EXPECT_TRUE(SlotIs(2, 0));
}

TEST_F(BouncerTest, AnAbandonedGetTouchesNothingAndKeepsItsRoomUntilItsAnswer) {
  ASSERT_EQ(bouncer_.Take(set_, Make(1, WireType::kGet, {1})), BlockResult::kOk);
  EXPECT_TRUE(bouncer_.Abandon(1));
  EXPECT_FALSE(bouncer_.Abandon(2));
  EXPECT_EQ(bouncer_.used_bytes(), set_.slot_bytes);
  PlaneReply reply = Push(1, 9);
  EXPECT_TRUE(bouncer_.Give(1, &reply));
  EXPECT_TRUE(SlotIs(1, 0));
  EXPECT_EQ(bouncer_.used_bytes(), 0u);
}

TEST_F(BouncerTest, NoRoomIsBusyAtOnceAndTakesNothing) {
  ASSERT_EQ(bouncer_.Take(set_, Make(1, WireType::kGet, {0, 1, 2})), BlockResult::kOk);
  const uint64_t used = bouncer_.used_bytes();
  EXPECT_EQ(bouncer_.Take(set_, Make(2, WireType::kGet, {0, 1})), BlockResult::kBusy);
  EXPECT_EQ(bouncer_.used_bytes(), used);
  EXPECT_EQ(bouncer_.Take(set_, Make(3, WireType::kGet, {3})), BlockResult::kOk);
  EXPECT_EQ(bouncer_.Take(set_, Make(4, WireType::kGet, {0, 1, 2, 3, 0})), BlockResult::kInvalid);
  bouncer_.Give(1, nullptr);
  EXPECT_EQ(bouncer_.Take(set_, Make(2, WireType::kGet, {0, 1})), BlockResult::kOk);
}

TEST_F(BouncerTest, AValueLargerThanTheAreaHasOneOfItsOwn) {
  const auto large = bouncer_.SetFor(100 * BounceArea::kUnit);
  ASSERT_TRUE(large.ok());
  EXPECT_NE(large->area, set_.area);
  EXPECT_EQ(large->area->bytes(), 100 * BounceArea::kUnit);
  EXPECT_EQ(bouncer_.SetFor(100 * BounceArea::kUnit)->area, large->area);
}

}  // namespace
}  // namespace crumb::client
