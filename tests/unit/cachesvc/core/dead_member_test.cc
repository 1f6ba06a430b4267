// An NVMe tier striped over two members, one of which answers nothing but EIO: what lies on it is
// lost, counted, and never wrong; what lies on the other one, and memory, serve on.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb {
namespace {

using testing::AfterLoss;
using testing::PageOf;
using testing::Rig;
using testing::Tiered;

constexpr uint64_t kUnit = 1 << 20;
constexpr uint64_t kMembers = 2;
constexpr uint64_t kStored = 700;
constexpr uint64_t kTryAgainUs = 3'000'000;

// As the second of two members of a stripe that dies.
Fault OfADeadMember(const IoRequest& request) {
  bool touched = request.op == IoOp::kSync;
  for (uint64_t at = request.offset; at < request.offset + request.bytes; at += 4096) {
    touched = touched || at / kUnit % kMembers == 1;
  }
  return Fault{.error = touched ? EIO : 0};
}

// Gets of all stored pages: each is exact or a miss.
std::set<uint64_t> Hits(Rig& rig) {
  std::set<uint64_t> hits;
  for (uint64_t key = 1; key <= kStored; ++key) {
    std::vector<uint8_t> got;
    const WireBlockReply reply = rig.Get(key, &got);
    EXPECT_TRUE(reply.result == BlockResult::kOk || reply.result == BlockResult::kMiss)
        << key << ": " << static_cast<int>(reply.result);
    if (reply.result != BlockResult::kOk) continue;
    EXPECT_EQ(got, AfterLoss(PageOf(key), 4)) << key;
    hits.insert(key);
  }
  return hits;
}

TEST(DeadMemberTest, ItsPagesAreMissesAndCountedAndTheOthersAreServed) {
  Rig rig(Tiered(16 << 20));
  for (uint64_t key = 1; key <= kStored; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
  rig.Settle();
  ASSERT_EQ(Hits(rig).size(), kStored);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) { return OfADeadMember(request); });

  const std::set<uint64_t> hits = Hits(rig);
  EXPECT_GT(hits.size(), kStored / 4);
  EXPECT_LT(hits.size(), kStored * 3 / 4);
  const EngineStats stats = rig.engine->stats();
  EXPECT_GE(stats.nvme.read_errors, kStored - hits.size() - testing::kPages);
  EXPECT_FALSE(stats.nvme.enabled);
  EXPECT_GE(stats.nvme.times_off, 1u);
  EXPECT_EQ(stats.checksum_failures_nvme, 0u);
  // Puts go to memory, and what still lies on the other member stays there.
  for (uint64_t key = 5000; key < 5100; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk) << key;
    std::vector<uint8_t> got;
    ASSERT_EQ(rig.Get(key, &got).result, BlockResult::kOk) << key;
    EXPECT_EQ(got, AfterLoss(PageOf(key), 4));
  }
  // However long it lasts and whatever is tried.
  for (int i = 0; i < 40; ++i) {
    rig.clock.Advance(kTryAgainUs);
    ASSERT_EQ(rig.Put(6000 + i, PageOf(6000 + i)).result, BlockResult::kOk);
    rig.Settle();
  }
  std::set<uint64_t> later = Hits(rig);
  EXPECT_GT(later.size(), hits.size() / 2) << "writes that fail must not use the log up";
  for (const uint64_t key : later) EXPECT_TRUE(hits.contains(key)) << key << " came back";
  EXPECT_LE(rig.engine->stats().nvme.used_bytes, rig.engine->stats().nvme.capacity_bytes);
  rig.ExpectAtRest();
}

TEST(DeadMemberTest, WhenItAnswersAgainTheTierStoresAgainWithoutARestart) {
  Rig rig(Tiered(16 << 20));
  for (uint64_t key = 1; key <= kStored; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
  rig.Settle();
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) { return OfADeadMember(request); });
  Hits(rig);
  for (int i = 0; i < 40; ++i) {
    rig.clock.Advance(kTryAgainUs);
    ASSERT_EQ(rig.Put(6000 + i, PageOf(6000 + i)).result, BlockResult::kOk);
    rig.Settle();
  }
  ASSERT_FALSE(rig.engine->stats().nvme.enabled);
  rig.faults->SetPlan(nullptr);
  for (uint64_t key = 7000; key < 7005; ++key) {
    rig.clock.Advance(kTryAgainUs);
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
    rig.Settle();
  }
  EXPECT_TRUE(rig.engine->stats().nvme.enabled);
  for (uint64_t key = 7100; key < 7200; ++key) {
    ASSERT_EQ(rig.Put(key, PageOf(key)).result, BlockResult::kOk);
  }
  rig.Settle();
  EXPECT_EQ(rig.Lookup(7100).tier, Tier::kNvme);
  rig.ExpectAtRest();
}

}  // namespace
}  // namespace crumb
