// The token bucket of the disk tier's write budget. Pure.
#include "cachesvc/core/write_budget.h"

#include <gtest/gtest.h>

namespace crumb::core {
namespace {

constexpr uint64_t kHourUs = 3'600'000'000;
constexpr uint64_t kPerDay = 24'000'000;  // a million bytes an hour

TEST(WriteBudgetTest, WithoutALimitEverythingMayBeWritten) {
  WriteBudget budget(0, 0);
  budget.Charge(uint64_t{1} << 60, 5);
  EXPECT_TRUE(budget.allows());
  EXPECT_EQ(budget.left_bytes(), 0);
}

TEST(WriteBudgetTest, ABurstIsAnHoursShareHoweverLongNothingWasWritten) {
  WriteBudget budget(kPerDay, 0);
  EXPECT_EQ(budget.left_bytes(), 1'000'000);
  budget.Charge(0, 100 * kHourUs);
  EXPECT_EQ(budget.left_bytes(), 1'000'000);
  budget.Charge(1'000'000, 100 * kHourUs);
  EXPECT_FALSE(budget.allows());
}

TEST(WriteBudgetTest, ItFillsEvenly) {
  WriteBudget budget(kPerDay, 0);
  budget.Charge(1'000'000, 0);
  EXPECT_FALSE(budget.allows());
  budget.Charge(1'000'000, kHourUs / 4);
  EXPECT_TRUE(budget.allows());
  EXPECT_EQ(budget.left_bytes(), 250'000);
}

TEST(WriteBudgetTest, WhatMustBeWrittenIsOwed) {
  WriteBudget budget(kPerDay, 0);
  budget.Charge(3'500'000, 0);
  EXPECT_EQ(budget.left_bytes(), -2'500'000);
  budget.Charge(3'500'000, 2 * kHourUs);
  EXPECT_FALSE(budget.allows());
  budget.Charge(3'500'000, 3 * kHourUs);
  EXPECT_TRUE(budget.allows());
}

TEST(WriteBudgetTest, OverADayNoMoreIsWrittenThanItsShareAndOneBurst) {
  WriteBudget budget(kPerDay, 0);
  uint64_t written = 0;
  for (uint64_t us = 0; us <= 24 * kHourUs; us += kHourUs / 60) {
    budget.Charge(written, us);
    while (budget.allows()) {
      written += 4096;
      budget.Charge(written, us);
    }
  }
  EXPECT_LE(written, kPerDay + kPerDay / 24 + 4096);
  EXPECT_GE(written, kPerDay);
}

TEST(WriteBudgetTest, AClockThatStandsStillAddsNothing) {
  WriteBudget budget(kPerDay, kHourUs);
  budget.Charge(1'000'000, kHourUs);
  budget.Charge(1'000'000, 0);
  EXPECT_FALSE(budget.allows());
}

}  // namespace
}  // namespace crumb::core
