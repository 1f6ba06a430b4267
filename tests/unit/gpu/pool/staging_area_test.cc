// StagingArea: first fit, joining of neighbours, and a random walk against a plain model.
#include "gpu/pool/staging_area.h"

#include <gtest/gtest.h>

#include <map>

#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

TEST(StagingAreaTest, FreedNeighboursJoinIntoOneRun) {
  StagingArea area(12);
  const uint32_t a = area.Allocate(4), b = area.Allocate(4), c = area.Allocate(4);
  EXPECT_EQ(area.Allocate(1), StagingArea::kNone);
  area.Free(a);
  area.Free(c);
  EXPECT_EQ(area.Allocate(8), StagingArea::kNone);
  area.Free(b);
  EXPECT_EQ(area.used(), 0u);
  EXPECT_EQ(area.Allocate(12), 0u);
}

TEST(StagingAreaTest, AnAreaOfNothingHasNoRoom) {
  StagingArea area(0);
  EXPECT_EQ(area.Allocate(1), StagingArea::kNone);
}

TEST(StagingAreaTest, RandomWalkNeverOverlapsAndNeverLeaks) {
  constexpr uint32_t kUnits = 97;
  StagingArea area(kUnits);
  std::map<uint32_t, uint32_t> live;
  Rng rng(1);
  for (int step = 0; step < 20000; ++step) {
    if (rng.Chance(1, 2)) {
      const auto want = static_cast<uint32_t>(1 + rng.Below(20));
      const uint32_t got = area.Allocate(want);
      uint32_t gap_max = 0, end = 0;
      for (const auto& [first, units] : live) {
        gap_max = std::max(gap_max, first - end);
        end = first + units;
      }
      gap_max = std::max(gap_max, kUnits - end);
      ASSERT_EQ(got != StagingArea::kNone, gap_max >= want);
      if (got == StagingArea::kNone) continue;
      const auto next = live.lower_bound(got);
      ASSERT_TRUE(next == live.end() || next->first >= got + want);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= got);
      live[got] = want;
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(rng.Below(live.size())));
      ASSERT_EQ(area.units_of(it->first), it->second);
      area.Free(it->first);
      live.erase(it);
    }
  }
  for (const auto& [first, units] : live) area.Free(first);
  EXPECT_EQ(area.Allocate(kUnits), 0u);
}

}  // namespace
}  // namespace crumb
