// Every EvictionPolicy: classes apart, held pages safe, leaves before prefixes, an answer wherever
// there is a candidate, and no allocation once the classes in use were seen.
#include "cachesvc/core/eviction_policy.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cachesvc/base/rng.h"
#include "tests/unit/client/allocation_counter.h"

namespace crumb::core {
namespace {

class EvictionPolicyTest : public ::testing::TestWithParam<PolicyKind> {
 protected:
  static constexpr uint32_t kPages = 200;
  std::unique_ptr<EvictionPolicy> policy_ = std::move(MakePolicy(GetParam(), kPages)).value();

  void Insert(PageId id, uint32_t size_class = 1) {
    policy_->Insert(id, {.size_class = size_class, .key = KeyOf(id)});
  }
  void Evict(PageId id) { policy_->Erase(id, {.why = Leaving::kEvicted, .key = KeyOf(id)}); }
  static uint64_t KeyOf(PageId id) { return (id + 1) * 0x9e3779b97f4a7c15ull; }
};

INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyTest,
                         ::testing::Values(PolicyKind::kS3Fifo, PolicyKind::kLru),
                         [](const auto& kind) { return std::string(ToString(kind.param)); });

TEST_P(EvictionPolicyTest, UnusedPagesGoInOrderAndClassesAreApart) {
  EXPECT_EQ(policy_->Victim(kAnyClass), kNoId);
  Insert(1, 10);
  Insert(2, 20);
  Insert(3, 10);
  EXPECT_EQ(policy_->Victim(10), 1u);
  EXPECT_EQ(policy_->Victim(10), 1u);  // asking moves nothing
  EXPECT_EQ(policy_->Victim(20), 2u);
  EXPECT_EQ(policy_->Victim(30), kNoId);
  EXPECT_EQ(policy_->Victim(kAnyClass), 1u);
  policy_->Touch(1);
  EXPECT_EQ(policy_->Victim(10), 3u);
  EXPECT_EQ(policy_->Victim(kAnyClass), 2u);
  Evict(2);
  EXPECT_EQ(policy_->Victim(20), kNoId);
  EXPECT_EQ(policy_->Victim(kAnyClass), 3u);
}

TEST_P(EvictionPolicyTest, HeldPagesAreNoCandidatesAndComeBack) {
  Insert(1);
  Insert(2);
  policy_->Hold(1);
  policy_->Hold(1);
  EXPECT_EQ(policy_->Victim(1), 2u);
  policy_->Hold(2);
  EXPECT_EQ(policy_->Victim(1), kNoId);
  EXPECT_EQ(policy_->Victim(kAnyClass), kNoId);
  policy_->Unhold(1);
  EXPECT_EQ(policy_->Victim(1), 1u);
  Evict(2);  // held pages may leave: a delete does not ask
  Evict(1);
  EXPECT_EQ(policy_->Victim(kAnyClass), kNoId);
}

TEST_P(EvictionPolicyTest, AChainGoesFromItsEnd) {
  constexpr uint32_t kLength = 8;
  for (PageId id = 0; id < kLength; ++id) {
    Insert(id);
    if (id > 0) policy_->SetChildren(id - 1, 1);
  }
  for (PageId id = kLength; id-- > 0;) {
    ASSERT_EQ(policy_->Victim(1), id);
    Evict(id);
    if (id > 0) policy_->SetChildren(id - 1, 0);
  }
}

TEST_P(EvictionPolicyTest, WhereAllArePrefixesOneGoes) {
  for (PageId id = 0; id < 3; ++id) {
    Insert(id);
    policy_->SetChildren(id, 1);
  }
  EXPECT_EQ(policy_->Victim(1), 0u);
  policy_->Hold(0);
  EXPECT_EQ(policy_->Victim(1), 1u);
}

// What any policy must keep, whatever happens to it.
struct PolicyModel {
  struct Page {
    uint32_t size_class = 0;
    bool held = false;
    uint32_t children = 0;
  };
  std::map<PageId, Page> pages;

  bool HasCandidate(uint32_t size_class, bool leaf) const {
    for (const auto& [id, page] : pages) {
      if (size_class != kAnyClass && page.size_class != size_class) continue;
      if (!page.held && (!leaf || page.children == 0)) return true;
    }
    return false;
  }
};

TEST_P(EvictionPolicyTest, RandomLivesAgreeWithTheModel) {
  PolicyModel model;
  Rng rng(11);
  for (int step = 0; step < 200'000; ++step) {
    const auto id = static_cast<PageId>(rng.Below(kPages));
    const auto it = model.pages.find(id);
    if (it == model.pages.end()) {
      const auto size_class = static_cast<uint32_t>(1 + rng.Below(3));
      Insert(id, size_class);
      model.pages[id].size_class = size_class;
      continue;
    }
    PolicyModel::Page& page = it->second;
    switch (rng.Below(8)) {
      case 0:
      case 1:
        policy_->Touch(id);
        break;
      case 2:
        page.held ? policy_->Unhold(id) : policy_->Hold(id);
        page.held = !page.held;
        break;
      case 3:
        page.children = static_cast<uint32_t>(rng.Below(3));
        policy_->SetChildren(id, page.children);
        break;
      case 4:
        policy_->Erase(id, {.why = static_cast<Leaving>(rng.Below(3)), .key = KeyOf(id)});
        model.pages.erase(it);
        break;
      default: {
        const auto wanted = static_cast<uint32_t>(rng.Below(4));
        const PageId victim = policy_->Victim(wanted);
        ASSERT_EQ(victim != kNoId, model.HasCandidate(wanted, false));
        if (victim == kNoId) break;
        ASSERT_EQ(policy_->Victim(wanted), victim);
        ASSERT_TRUE(model.pages.contains(victim));
        const PolicyModel::Page& chosen = model.pages[victim];
        ASSERT_FALSE(chosen.held);
        ASSERT_TRUE(wanted == kAnyClass || chosen.size_class == wanted);
        if (chosen.children > 0) {
          ASSERT_FALSE(model.HasCandidate(chosen.size_class, true));
        }
        if (rng.Chance(1, 2)) {
          Evict(victim);
          model.pages.erase(victim);
        }
      }
    }
  }
}

TEST_P(EvictionPolicyTest, NothingIsAllocatedAfterCreate) {
  const uint64_t before = crumb::testing::Allocations();
  for (uint32_t step = 0; step < 20'000; ++step) {
    const PageId id = step % kPages;
    if (step >= kPages) Evict(id);
    Insert(id, 1 + step % 7);
    policy_->Touch(id);
    policy_->SetChildren(id, step % 2);
    policy_->Victim(1 + step % 7);
    policy_->Victim(kAnyClass);
  }
  EXPECT_EQ(crumb::testing::Allocations(), before);
}

// A scan of pages that are never used again leaves what is used, up to a fifth of the memory.
TEST(S3FifoPolicyTest, AScanLeavesWhatIsUsed) {
  constexpr uint32_t kCapacity = 100, kHot = 20;
  auto policy = std::move(MakePolicy(PolicyKind::kS3Fifo, 10'000)).value();
  std::set<PageId> there;
  const auto put = [&](PageId id) {
    const uint64_t key = (id + 1) * 0x9e3779b97f4a7c15ull;
    if (there.size() == kCapacity) {
      const PageId victim = policy->Victim(1);
      policy->Erase(victim,
                    {.why = Leaving::kEvicted, .key = (victim + 1) * 0x9e3779b97f4a7c15ull});
      there.erase(victim);
    }
    policy->Insert(id, {.size_class = 1, .key = key});
    there.insert(id);
  };
  for (PageId id = 0; id < kHot; ++id) put(id);
  for (PageId id = 0; id < kHot; ++id) policy->Touch(id);
  for (PageId id = 1000; id < 2000; ++id) put(id);
  for (PageId id = 0; id < kHot; ++id) EXPECT_TRUE(there.contains(id)) << id;
}

TEST(S3FifoPolicyTest, AKeyThatComesBackSoonIsKnown) {
  auto policy = std::move(MakePolicy(PolicyKind::kS3Fifo, 100)).value();
  const auto key = [](PageId id) { return (id + 1) * 0x9e3779b97f4a7c15ull; };
  for (PageId id = 0; id < 10; ++id) policy->Insert(id, {.size_class = 1, .key = key(id)});
  policy->Erase(0, {.why = Leaving::kEvicted, .key = key(0)});
  policy->Insert(0, {.size_class = 1, .key = key(0)});  // into the main queue
  for (PageId id = 1; id < 10; ++id) {
    ASSERT_EQ(policy->Victim(1), id);
    policy->Erase(id, {.why = Leaving::kGone, .key = key(id)});
  }
  EXPECT_EQ(policy->Victim(1), 0u);
  // Those that were deleted are not missed, and are nothing special when they come again.
  for (PageId id = 1; id < 10; ++id) policy->Insert(id, {.size_class = 1, .key = key(id)});
  EXPECT_EQ(policy->Victim(1), 1u);
}

// Another image of a page, of another size, is not new: it goes to the main queue of its class.
TEST(S3FifoPolicyTest, AReplacedPageIsNoNewOne) {
  auto policy = std::move(MakePolicy(PolicyKind::kS3Fifo, 100)).value();
  const auto key = [](PageId id) { return (id + 1) * 0x9e3779b97f4a7c15ull; };
  policy->Insert(0, {.size_class = 1, .key = key(0)});
  policy->Erase(0, {.why = Leaving::kReplaced, .key = key(0)});
  policy->Insert(0, {.size_class = 2, .key = key(0)});
  for (PageId id = 1; id < 6; ++id) policy->Insert(id, {.size_class = 2, .key = key(id)});
  EXPECT_EQ(policy->Victim(1), kNoId);
  EXPECT_EQ(policy->Victim(2), 1u);
}

}  // namespace
}  // namespace crumb::core
