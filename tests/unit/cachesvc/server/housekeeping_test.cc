// When memory is given back, what is said about the disk tier and about descriptors.
#include "cachesvc/server/housekeeping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace crumb {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSecond = 1'000'000;

TEST(TrimTimer, WaitsUntilSessionsHaveEndedForAWhileAndOncePerSuchTime) {
  TrimTimer timer;
  EXPECT_FALSE(timer.Due(0, 0, 100 * kSecond));
  EXPECT_FALSE(timer.Due(3, 10, 101 * kSecond));
  EXPECT_FALSE(timer.Due(3, 20, 110 * kSecond));  // none ended
  EXPECT_FALSE(timer.Due(2, 20, 111 * kSecond));
  EXPECT_FALSE(timer.Due(1, 20, 113 * kSecond));  // another one: wait again
  EXPECT_FALSE(timer.Due(1, 30, 115 * kSecond));
  EXPECT_TRUE(timer.Due(1, 40, 116 * kSecond));
  EXPECT_FALSE(timer.Due(1, 50, 117 * kSecond));  // done
  EXPECT_FALSE(timer.Due(1, 60, 1000 * kSecond));
}

TEST(TrimTimer, SeesSessionsThatCameAndWentBetweenTwoLooks) {
  TrimTimer timer;
  EXPECT_FALSE(timer.Due(0, 0, 1 * kSecond));
  EXPECT_FALSE(timer.Due(0, 5, 2 * kSecond));
  EXPECT_FALSE(timer.Due(0, 5, 4 * kSecond));
  EXPECT_TRUE(timer.Due(0, 5, 5 * kSecond));
  EXPECT_FALSE(timer.Due(0, 5, 100 * kSecond));
}

TEST(TrimTimer, DoesNotWaitForEverWhileSessionsComeAndGo) {
  TrimTimer timer;
  uint64_t times = 0;
  for (uint64_t second = 0; second < 100; ++second) {
    if (timer.Due(second % 2, second, second * kSecond)) ++times;
  }
  EXPECT_EQ(times, 3u);
}

TEST(TierWatch, SaysEachChangeOnce) {
  const SteadyClock clock;
  ::testing::internal::CaptureStderr();
  {
    Log log({}, clock);
    TierWatch watch(&log);
    EngineStats stats;
    stats.nvme.enabled = false;
    watch.Look(stats);  // there is no tier
    stats.nvme_present = true;
    for (const bool enabled : {true, true, false, false, true, true}) {
      stats.nvme.enabled = enabled;
      watch.Look(stats);
    }
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  const size_t off = said.find("warning the NVMe tier turned itself off");
  const size_t on = said.find("the NVMe tier is on again");
  ASSERT_NE(off, std::string::npos) << said;
  ASSERT_NE(on, std::string::npos) << said;
  EXPECT_LT(off, on);
}

TEST(TierWatch, SaysOnceThatTheVolumeIsFullAndOnceThatItHasRoom) {
  const SteadyClock clock;
  ::testing::internal::CaptureStderr();
  {
    Log log({}, clock);
    TierWatch watch(&log);
    EngineStats stats;
    stats.nvme_present = true;
    watch.Look(stats);
    EXPECT_EQ(watch.Warning(stats), "");
    // Some writes find room, most do not; the tier goes off and on.
    for (int i = 0; i < 20; ++i) {
      ++stats.nvme.no_space_errors;
      stats.nvme.bytes_written += 4096;
      stats.nvme.enabled = i % 3 != 0;
      watch.Look(stats);
      EXPECT_THAT(watch.Warning(stats), HasSubstr("is full"));
    }
    stats.nvme.enabled = true;
    for (int i = 0; i < 20; ++i) watch.Look(stats);  // nothing is tried
    EXPECT_THAT(watch.Warning(stats), HasSubstr("make room"));
    for (int i = 0; i < 5; ++i) {
      stats.nvme.bytes_written += 4096;
      watch.Look(stats);
    }
    EXPECT_EQ(watch.Warning(stats), "");
    stats.nvme.enabled = false;
    EXPECT_THAT(watch.Warning(stats), HasSubstr("check the disk"));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_THAT(said, HasSubstr("make room"));
  EXPECT_THAT(said, HasSubstr("has room again"));
}

TEST(FileLimit, IsWarnedOfWithTheRemedy) {
  EXPECT_EQ(FileLimitWarning(kFilesWanted), "");
  EXPECT_THAT(FileLimitWarning(kFilesWanted - 1), HasSubstr("65535"));
  EXPECT_THAT(FileLimitWarning(1024), HasSubstr("LimitNOFILE=65536"));
}

}  // namespace
}  // namespace crumb
