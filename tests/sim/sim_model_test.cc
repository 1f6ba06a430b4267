// The judge of the simulator: every rule of it can be broken, and none is broken by an answer that
// some order of the requests explains.
#include "tests/sim/sim_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"

namespace crumb::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SimModelTest : public ::testing::Test {
 protected:
  static const std::vector<SimLayout>& Layouts() {
    static const auto* layouts = new std::vector<SimLayout>(*MakeSimLayouts());
    return *layouts;
  }
  static WireBlockReply Reply(BlockResult result, uint8_t depth = 0) {
    return {.result = result, .lossy_depth = depth};
  }
  size_t StartPut(bool durable = false, uint8_t depth_min = 0) {
    return model_.StartPut(key_, space_.MakeImage(key_, {}, &value_), durable, depth_min);
  }
  size_t Put(BlockResult result, bool durable = false) {
    const size_t put = StartPut(durable);
    model_.EndPut(key_, put, Reply(result));
    values_.resize(put + 1);
    values_[put] = value_;
    return put;
  }
  void Remove(bool done) { model_.EndRemoval(key_, model_.StartRemoval(key_), done); }
  // A raw hit of what `put` stored.
  void Hit(size_t put, Moment asked) {
    HitOf(values_[put], model_.put(key_, put).image.expected.precision, asked);
  }
  // The key's layout is an exact one: what is got is what was put.
  void HitOf(const std::vector<uint8_t>& value, Precision precision, Moment asked,
             uint8_t depth = 0) {
    const WireBlockReply reply{.result = BlockResult::kOk,
                               .precision = precision,
                               .lossy_depth = depth,
                               .value_bytes = static_cast<uint32_t>(value.size()),
                               .checksum = Xxh3(value)};
    model_.JudgeHit(key_, asked, PageForm::kRaw, reply, value);
  }

  SimContext context_{7, Echo::kQuiet};
  KeySpace space_{&context_, &Layouts(), ClusterSecret{}, 96};
  Model model_{&context_, &space_};
  KeyRef key_{ExactKey()};
  std::vector<uint8_t> value_;
  std::vector<std::vector<uint8_t>> values_;

 private:
  KeyRef ExactKey() const {
    KeyRef key;
    while (space_.layout(key).handle != 1) ++key.index;
    return key;
  }
};

TEST_F(SimModelTest, AHitOfWhatWasStoredIsRight) {
  const size_t put = Put(BlockResult::kOk);
  Hit(put, model_.Now());
  EXPECT_THAT(context_.failure, IsEmpty());
}

TEST_F(SimModelTest, AHitWhileThePutIsInFlightIsRight) {
  const size_t put = StartPut();
  HitOf(value_, model_.put(key_, put).image.expected.precision, model_.Now());
  EXPECT_THAT(context_.failure, IsEmpty());
}

TEST_F(SimModelTest, AHitThatNobodyPutIsFound) {
  Put(BlockResult::kOk);
  const std::vector<uint8_t> bytes = MakeValue(space_.shape(key_), {}, 999);
  model_.JudgeHit(key_, model_.Now(), PageForm::kRaw,
                  {.result = BlockResult::kOk, .checksum = Xxh3(bytes)}, bytes);
  EXPECT_THAT(context_.failure, HasSubstr("nobody put"));
}

TEST_F(SimModelTest, AWrongChecksumIsFound) {
  const size_t put = Put(BlockResult::kOk);
  model_.JudgeHit(key_, model_.Now(), PageForm::kRaw, {.result = BlockResult::kOk, .checksum = 1},
                  values_[put]);
  EXPECT_THAT(context_.failure, HasSubstr("checksum"));
}

TEST_F(SimModelTest, APutThatFailedLeavesNoTrace) {
  const size_t put = Put(BlockResult::kTimeout);
  Hit(put, model_.Now());
  EXPECT_THAT(context_.failure, HasSubstr("refused"));
}

TEST_F(SimModelTest, WhatWasRemovedDoesNotComeBack) {
  const size_t put = Put(BlockResult::kOk);
  Remove(true);
  Hit(put, model_.Now());
  EXPECT_THAT(context_.failure, HasSubstr("removed"));
}

TEST_F(SimModelTest, AGetThatWasAskedBeforeTheRemovalEndedMayHit) {
  const size_t put = Put(BlockResult::kOk);
  const size_t removal = model_.StartRemoval(key_);
  const Moment asked = model_.Now();
  model_.EndRemoval(key_, removal, true);
  Hit(put, asked);
  EXPECT_THAT(context_.failure, IsEmpty());
}

TEST_F(SimModelTest, ARemovalThatFailedProvesNothing) {
  const size_t put = Put(BlockResult::kOk, true);
  Remove(false);
  Hit(put, model_.Now());
  model_.JudgeMiss(key_, model_.Now(), "get");
  EXPECT_THAT(context_.failure, IsEmpty());
}

TEST_F(SimModelTest, WhatWasReplacedDoesNotComeBackButByACrash) {
  const size_t first = Put(BlockResult::kOk);
  Put(BlockResult::kOk);
  model_.Crashed();
  Hit(first, model_.Now());
  EXPECT_THAT(context_.failure, IsEmpty());
  Put(BlockResult::kOk);
  Hit(first, model_.Now());
  EXPECT_THAT(context_.failure, HasSubstr("replaced"));
}

TEST_F(SimModelTest, ADurablePageIsPromisedAlsoAfterACrash) {
  Put(BlockResult::kOk, true);
  model_.Crashed();
  EXPECT_TRUE(model_.MustHit(key_, model_.Now()));
  model_.JudgeMiss(key_, model_.Now(), "get");
  EXPECT_THAT(context_.failure, HasSubstr("promised"));
}

TEST_F(SimModelTest, NothingIsPromisedThatWasNotAnsweredDurable) {
  Put(BlockResult::kOk);
  Put(BlockResult::kNotDurable, true);
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  const Moment before = model_.Now();
  Put(BlockResult::kExists, true);
  EXPECT_FALSE(model_.MustHit(key_, before));
  EXPECT_TRUE(model_.MustHit(key_, model_.Now()));
}

TEST_F(SimModelTest, DamageRemovalAndReclaimEndAPromise) {
  Put(BlockResult::kOk, true);
  model_.set_keeps_all(false);
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  model_.set_keeps_all(true);
  EXPECT_TRUE(model_.MustHit(key_, model_.Now()));
  model_.Excuse(key_);
  model_.JudgeMiss(key_, model_.Now(), "get");
  EXPECT_EQ(model_.lost_to_damage(), 1u);
  Put(BlockResult::kOk, true);
  EXPECT_TRUE(model_.MustHit(key_, model_.Now()));
  model_.ExcuseAll();
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  Put(BlockResult::kOk, true);
  model_.StartRemoval(key_);
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  EXPECT_THAT(context_.failure, IsEmpty());
}

TEST_F(SimModelTest, APinIsAPromiseForItsTime) {
  Put(BlockResult::kOk);
  model_.Pinned(key_, model_.Now(), context_.clock.now_us() + 1000);
  EXPECT_TRUE(model_.MustHit(key_, model_.Now()));
  context_.clock.AdvanceTo(context_.clock.now_us() + 1000);
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  model_.Pinned(key_, model_.Now(), UINT64_MAX);
  model_.Crashed();
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
}

TEST_F(SimModelTest, APinDoesNotMakeADamagedPageWhole) {
  Put(BlockResult::kOk);
  model_.Excuse(key_);
  model_.Pinned(key_, model_.Now(), UINT64_MAX);
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  Put(BlockResult::kOk);
  model_.Pinned(key_, model_.Now(), UINT64_MAX);
  EXPECT_TRUE(model_.MustHit(key_, model_.Now())) << "it was written after the damage";
}

TEST_F(SimModelTest, ALookupMustNotInventPages) {
  model_.JudgeLookupHit(key_, model_.Now(), Reply(BlockResult::kOk), "look-up");
  EXPECT_THAT(context_.failure, HasSubstr("nothing was stored"));
}

TEST_F(SimModelTest, ARefusablePageThatIsStoredIsFound) {
  const size_t put = Put(BlockResult::kOk);
  const size_t damaged = model_.StartPagePut(key_, model_.put(key_, put), true, false);
  model_.EndPut(key_, damaged, Reply(BlockResult::kMismatch));
  EXPECT_THAT(context_.failure, IsEmpty());
  const size_t again = model_.StartPagePut(key_, model_.put(key_, put), true, false);
  model_.EndPut(key_, again, Reply(BlockResult::kOk));
  EXPECT_THAT(context_.failure, HasSubstr("must be refused"));
}

TEST_F(SimModelTest, ACleanStopPromisesWhatWasThere) {
  const size_t put = Put(BlockResult::kOk);
  const Moment since = model_.Now();
  Hit(put, model_.Now());
  model_.PromiseHitsSince(since);
  model_.Crashed();
  model_.JudgeMiss(key_, model_.Now(), "get");
  EXPECT_THAT(context_.failure, HasSubstr("promised"));
}

TEST_F(SimModelTest, TheBytesOfAnotherKeyAreNamed) {
  Put(BlockResult::kOk);
  KeyRef other{key_.index + 1};
  std::vector<uint8_t> foreign;
  space_.MakeImage(other, {}, &foreign);
  HitOf(foreign, Precision::kRaw, model_.Now());
  EXPECT_THAT(context_.failure, HasSubstr(space_.Name(other)));
}

TEST_F(SimModelTest, WhatAnotherDaemonWasGivenIsNoHitHere) {
  Model other(&context_, &space_);
  const size_t put = other.StartPut(key_, space_.MakeImage(key_, {}, &value_), false);
  other.EndPut(key_, put, Reply(BlockResult::kOk));
  HitOf(value_, Precision::kRaw, model_.Now());
  EXPECT_THAT(context_.failure, HasSubstr("another daemon"));
}

TEST_F(SimModelTest, APageOfALossyChainMustBeCalledLossy) {
  const size_t put = StartPut(false, 1);
  model_.EndPut(key_, put, Reply(BlockResult::kOk, 0));
  EXPECT_THAT(context_.failure, HasSubstr("computed from a lossy one"));
}

TEST_F(SimModelTest, HowLossyAPageIsMustNotChange) {
  const size_t put = StartPut(false, 1);
  model_.EndPut(key_, put, Reply(BlockResult::kOk, 2));
  HitOf(value_, Precision::kRaw, model_.Now(), 2);
  EXPECT_THAT(context_.failure, IsEmpty());
  HitOf(value_, Precision::kRaw, model_.Now(), 1);
  EXPECT_THAT(context_.failure, HasSubstr("before it was 2"));
}

TEST_F(SimModelTest, APageTooDeepIsNoHit) {
  model_.set_max_lossy_depth(1);
  const size_t put = StartPut(true);
  model_.EndPut(key_, put, Reply(BlockResult::kOk, 2));
  EXPECT_FALSE(model_.MustHit(key_, model_.Now()));
  HitOf(value_, Precision::kRaw, model_.Now(), 2);
  EXPECT_THAT(context_.failure, HasSubstr("2 lossy pages deep"));
}

TEST(SimLayouts, TheReferenceClimbsTheLadder) {
  const auto layouts = MakeSimLayouts();
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  const SimLayout& lossy = (*layouts)[1];
  bool low = false, raw = false;
  for (uint64_t seed = 1; seed < 60; ++seed) {
    const std::vector<uint8_t> value = MakeValue(lossy.part(0), {}, seed);
    const Precision precision = Reference(lossy, 0, {}, value).precision;
    low = low || precision == Precision::kInt2;
    raw = raw || precision == Precision::kRaw;
    const Precision careful = Reference(lossy, 0, {.position_known = false}, value).precision;
    EXPECT_LE(careful, lossy.binding.unknown_position_precision);
  }
  EXPECT_TRUE(low);
  EXPECT_TRUE(raw);
}

}  // namespace
}  // namespace crumb::sim
