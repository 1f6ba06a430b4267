// The circuit: when it opens, that one probe goes out at a time, how it closes. Time is the test's.
#include "client/src/breaker.h"

#include <gtest/gtest.h>

namespace crumb::client {
namespace {

constexpr BreakerOptions kOptions{.failures = 3, .open_us = 1000, .open_us_max = 4000};

class BreakerTest : public testing::Test {
 protected:
  void OpenIt() {
    for (int i = 0; i < 3; ++i) breaker_.OnFailure(now_us_);
    ASSERT_EQ(breaker_.state(), Circuit::kOpen);
  }
  Rng rng_{7};
  Breaker breaker_{kOptions, &rng_};
  uint64_t now_us_ = 1'000'000;
};

TEST_F(BreakerTest, OnlyFailuresInARowOpenIt) {
  for (int round = 0; round < 10; ++round) {
    breaker_.OnFailure(now_us_);
    breaker_.OnFailure(now_us_);
    breaker_.OnAnswer();
  }
  EXPECT_EQ(breaker_.state(), Circuit::kClosed);
  EXPECT_TRUE(breaker_.Allow(now_us_));
  OpenIt();
  EXPECT_EQ(breaker_.opened(), 1u);
}

TEST_F(BreakerTest, OpenRefusesUntilItsPauseIsOverThenLetsOneProbeOut) {
  OpenIt();
  EXPECT_FALSE(breaker_.Allow(now_us_));
  EXPECT_FALSE(breaker_.Allow(now_us_ + 499));  // half of the pause is not jitter
  const uint64_t retry_us = breaker_.retry_us();
  EXPECT_GE(retry_us, now_us_ + 500);
  EXPECT_LE(retry_us, now_us_ + 1000);
  EXPECT_FALSE(breaker_.Allow(retry_us - 1));
  EXPECT_TRUE(breaker_.Allow(retry_us));
  EXPECT_EQ(breaker_.state(), Circuit::kHalfOpen);
  EXPECT_FALSE(breaker_.Allow(retry_us + 1'000'000));
  EXPECT_EQ(breaker_.refused(), 4u);
  breaker_.OnAnswer();
  EXPECT_EQ(breaker_.state(), Circuit::kClosed);
  EXPECT_TRUE(breaker_.Allow(retry_us));
  EXPECT_TRUE(breaker_.Allow(retry_us));
}

TEST_F(BreakerTest, AFailedProbeOpensItAgainForTwiceAsLongUpToABound) {
  OpenIt();
  for (const uint64_t pause_us : {2000u, 4000u, 4000u, 4000u}) {
    now_us_ = breaker_.retry_us();
    ASSERT_TRUE(breaker_.Allow(now_us_));
    breaker_.OnFailure(now_us_);
    EXPECT_EQ(breaker_.state(), Circuit::kOpen);
    EXPECT_GE(breaker_.retry_us(), now_us_ + pause_us / 2);
    EXPECT_LE(breaker_.retry_us(), now_us_ + pause_us);
  }
  // An answer makes it forget how bad it was.
  now_us_ = breaker_.retry_us();
  ASSERT_TRUE(breaker_.Allow(now_us_));
  breaker_.OnAnswer();
  OpenIt();
  EXPECT_LE(breaker_.retry_us(), now_us_ + 1000);
}

TEST_F(BreakerTest, AProbeThatWasNotSentMayBeSentAgain) {
  OpenIt();
  now_us_ = breaker_.retry_us();
  ASSERT_TRUE(breaker_.Allow(now_us_));
  breaker_.Withdraw();
  EXPECT_TRUE(breaker_.Allow(now_us_));
  EXPECT_FALSE(breaker_.Allow(now_us_));
}

TEST_F(BreakerTest, ALateAnswerIsASignOfLifeAndNoMore) {
  OpenIt();
  breaker_.OnLateAnswer();
  EXPECT_EQ(breaker_.state(), Circuit::kOpen);
  EXPECT_TRUE(breaker_.Allow(now_us_));
  EXPECT_EQ(breaker_.state(), Circuit::kHalfOpen);
}

TEST_F(BreakerTest, FailuresWhileOpenDoNotProlongIt) {
  OpenIt();
  const uint64_t retry_us = breaker_.retry_us();
  for (int i = 0; i < 100; ++i) breaker_.OnFailure(now_us_ + 400);
  EXPECT_EQ(breaker_.retry_us(), retry_us);
  EXPECT_EQ(breaker_.opened(), 1u);
}

TEST(BreakerOff, NeverOpens) {
  Rng rng(1);
  Breaker breaker({.failures = 0}, &rng);
  for (int i = 0; i < 100; ++i) breaker.OnFailure(5);
  EXPECT_TRUE(breaker.Allow(5));
}

}  // namespace
}  // namespace crumb::client
