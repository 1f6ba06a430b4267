// Percentiles against the sorted list.
#include "client/cli/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cachesvc/base/rng.h"

namespace crumb::cli {
namespace {

TEST(Histogram, IsEmptyAtFirst) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.Percentile(0.5), 0u);
  EXPECT_EQ(histogram.mean(), 0.0);
}

TEST(Histogram, SmallValuesAreExact) {
  Histogram histogram;
  for (uint64_t i = 1; i <= 50; ++i) histogram.Add(i);
  EXPECT_EQ(histogram.Percentile(0.0), 1u);
  EXPECT_EQ(histogram.Percentile(0.5), 25u);
  EXPECT_EQ(histogram.Percentile(0.98), 49u);
  EXPECT_EQ(histogram.Percentile(1.0), 50u);
  EXPECT_DOUBLE_EQ(histogram.mean(), 25.5);
}

TEST(Histogram, IsWithinTwoPercentOfTheSortedList) {
  Rng rng(5);
  Histogram histogram;
  std::vector<uint64_t> values;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t value = rng.Next() >> rng.Below(60);
    values.push_back(value);
    histogram.Add(value);
  }
  std::sort(values.begin(), values.end());
  for (double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    const auto exact = static_cast<double>(values[std::max<size_t>(rank, 1) - 1]);
    const auto got = static_cast<double>(histogram.Percentile(share));
    EXPECT_GE(got, exact) << share;
    EXPECT_LE(got, exact * 1.02 + 1) << share;
  }
}

TEST(Histogram, NeverAnswersAboveTheMaximum) {
  Histogram histogram;
  histogram.Add(1'000'001);
  EXPECT_EQ(histogram.Percentile(0.999), 1'000'001u);
  histogram.Add(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(histogram.Percentile(1.0), std::numeric_limits<uint64_t>::max());
}

TEST(Histogram, MergingIsAddingAll) {
  Rng rng(9);
  Histogram a, b, both;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = rng.Below(100000);
    (i % 2 == 0 ? a : b).Add(value);
    both.Add(value);
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), both.count());
  EXPECT_EQ(a.max(), both.max());
  for (double share : {0.1, 0.5, 0.99}) EXPECT_EQ(a.Percentile(share), both.Percentile(share));
}

}  // namespace
}  // namespace crumb::cli
