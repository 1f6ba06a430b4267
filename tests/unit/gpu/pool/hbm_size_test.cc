// SizeHbmPool: what auto leaves, what is refused and how that reads, and sums that must not wrap.
#include "gpu/pool/hbm_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachesvc/base/rng.h"
#include "gpu/pool/page_pool.h"

namespace crumb {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kTotal = 140 * kGiB;
constexpr uint64_t kReserve = kGiB + kTotal / 50;

HbmSizeOptions Auto(uint64_t total, uint64_t free) {
  return {.total_bytes = total, .free_bytes = free};
}
HbmSizeOptions Bytes(uint64_t free, uint64_t bytes) {
  return {.total_bytes = kTotal, .free_bytes = free, .wanted = {HbmWish::kBytes, bytes}};
}
HbmSizeOptions Percent(uint64_t free, uint64_t percent) {
  return {.total_bytes = kTotal, .free_bytes = free, .wanted = {HbmWish::kPercent, percent}};
}

HbmSize Size(const HbmSizeOptions& options) {
  const auto size = SizeHbmPool(options);
  EXPECT_TRUE(size.ok()) << size.status();
  return size.ok() ? *size : HbmSize{};
}

void ExpectRefused(const HbmSizeOptions& options, absl::StatusCode code,
                   std::initializer_list<const char*> words) {
  const auto size = SizeHbmPool(options);
  ASSERT_EQ(size.status().code(), code) << size.status();
  for (const char* word : words) EXPECT_THAT(std::string(size.status().message()), HasSubstr(word));
}

TEST(HbmSizeTest, AutoLeavesNineTenthsToEnginesWhetherTheyStartedOrNot) {
  const uint64_t want = (kTotal / 10 - kReserve) / kHbmStepBytes * kHbmStepBytes;
  for (const uint64_t free : {kTotal, kTotal - kGiB / 2, kTotal / 2, kTotal / 10}) {
    const HbmSize size = Size(Auto(kTotal, free));
    EXPECT_EQ(size.bytes, want) << free;
    EXPECT_THAT(size.reason, HasSubstr("10.1 GiB of the GPU's 140.0 GiB (auto"));
    EXPECT_THAT(size.reason, HasSubstr("3.7 GiB of that stay free for CUDA contexts"));
    EXPECT_THAT(size.reason, HasSubstr("engines take 126.0 GiB in all"));
    EXPECT_THAT(size.reason, HasSubstr("may take 0.90 of it (vLLM"));
  }
}

TEST(HbmSizeTest, AutoTakesLessWhereEnginesHoldMore) {
  EXPECT_EQ(Size(Auto(kTotal, 8 * kGiB)).bytes,
            (8 * kGiB - kReserve) / kHbmStepBytes * kHbmStepBytes);
  EXPECT_THAT(Size(Auto(kTotal, 8 * kGiB)).reason, HasSubstr("8.0 GiB were free"));
}

TEST(HbmSizeTest, AutoGoesByWhatEnginesAreKnownToTake) {
  HbmSizeOptions options = Auto(kTotal, kTotal);
  options.engine_bytes = 70 * kGiB;
  EXPECT_EQ(Size(options).bytes, (70 * kGiB - kReserve) / kHbmStepBytes * kHbmStepBytes);
  options.engine_bytes = 0;  // a GPU of our own
  EXPECT_EQ(Size(options).bytes, (kTotal - kReserve) / kHbmStepBytes * kHbmStepBytes);
  EXPECT_THAT(Size(options).reason, Not(HasSubstr("engines take")));
}

TEST(HbmSizeTest, ASizeThatWasAskedForIsTakenInWholeSteps) {
  EXPECT_EQ(Size(Bytes(kTotal, 40 * kGiB)).bytes, 40 * kGiB);
  EXPECT_EQ(Size(Bytes(kTotal, 40 * kGiB + kHbmStepBytes - 1)).bytes, 40 * kGiB);
  EXPECT_THAT(Size(Bytes(kTotal, 40 * kGiB + 1)).reason, HasSubstr("in whole 2 MiB"));
  const HbmSize size = Size(Bytes(kTotal, 40 * kGiB));
  EXPECT_THAT(size.reason, HasSubstr("40.0 GiB of the GPU's 140.0 GiB (as configured);"));
  EXPECT_THAT(size.reason, HasSubstr("may take 0.68 of it")) << "(140 - 40 - 3.8) / 140";
  EXPECT_EQ(Size(Percent(kTotal, 50)).bytes, 70 * kGiB);
  EXPECT_THAT(Size(Percent(kTotal, 50)).reason, HasSubstr("(50%)"));
  EXPECT_EQ(Size(Percent(kTotal, 1)).bytes, 1432 * kMiB) << "1433.6 MiB in steps";
  EXPECT_EQ(Size(Bytes(kTotal, kHbmBytesMin)).bytes, kHbmBytesMin);
}

TEST(HbmSizeTest, WhatIsFreeLessTheReserveIsTheMost) {
  const uint64_t most = (60 * kGiB - kReserve) / kHbmStepBytes * kHbmStepBytes;
  EXPECT_EQ(Size(Bytes(60 * kGiB, most)).bytes, most);
  ExpectRefused(Bytes(60 * kGiB, most + kHbmStepBytes), absl::StatusCode::kResourceExhausted,
                {"60.0 GiB of the GPU's 140.0 GiB are free", "3.7 GiB of that must stay free",
                 "CUDA contexts", "set at most pool.hbm_bytes: 57548MiB", "nvidia-smi"});
  EXPECT_EQ(most, 57548 * kMiB);
  ExpectRefused(Percent(60 * kGiB, 50), absl::StatusCode::kResourceExhausted,
                {"pool.hbm_bytes: 50%, 70.0 GiB, does not fit", "pool.hbm_bytes: 57548MiB"});
  ExpectRefused(Percent(kTotal, 100), absl::StatusCode::kResourceExhausted, {"100%"});
}

TEST(HbmSizeTest, WhatEnginesStillTakeIsNotOursToAskFor) {
  HbmSizeOptions options = Bytes(kTotal - 20 * kGiB, 60 * kGiB);
  options.engine_bytes = 100 * kGiB;
  ExpectRefused(options, absl::StatusCode::kResourceExhausted,
                {"and 80.0 GiB for engines", "a smaller memory fraction for engines"});
  options.engine_bytes = 70 * kGiB;
  EXPECT_EQ(Size(options).bytes, 60 * kGiB);
  EXPECT_THAT(Size(options).reason, HasSubstr("engines take 70.0 GiB in all, 50.0 GiB of that"));
}

TEST(HbmSizeTest, AFullDeviceIsRefusedWithBothRemedies) {
  for (const uint64_t free : {uint64_t{0}, kReserve, kReserve + kHbmBytesMin - 1}) {
    ExpectRefused(
        Auto(kTotal, free), absl::StatusCode::kResourceExhausted,
        {"pool.hbm_bytes: auto does not fit", "pool.hbm_bytes: 0 for no GPU tier", "nvidia-smi"});
  }
  EXPECT_EQ(Size(Auto(kTotal, kReserve + kHbmBytesMin)).bytes, kHbmBytesMin);
  ExpectRefused(Auto(8 * kGiB, 8 * kGiB), absl::StatusCode::kResourceExhausted,
                {"7.2 GiB for engines"});
}

TEST(HbmSizeTest, WrongFiguresAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused(Auto(0, 0), kInvalid, {"0 of 0 bytes are free"});
  ExpectRefused(Auto(kTotal, kTotal + 1), kInvalid, {"bytes are free"});
  ExpectRefused(Percent(kTotal, 0), kInvalid, {"pool.hbm_bytes: 0% must be 1% to 100%"});
  ExpectRefused(Percent(kTotal, 101), kInvalid, {"pool.hbm_bytes: 101% must be"});
  ExpectRefused(Percent(kTotal, ~0ull), kInvalid, {"must be 1% to 100%"});
  ExpectRefused(Bytes(kTotal, 0), kInvalid, {"pool.hbm_bytes: 0 bytes must be 8MiB to 8192GiB"});
  ExpectRefused(Bytes(kTotal, kHbmBytesMin - 1), kInvalid, {"8388607 bytes must be"});
  ExpectRefused(Bytes(kTotal, ~0ull), kInvalid, {"must be 8MiB to"});
  HbmSizeOptions tiny = {.total_bytes = 700 * kMiB, .free_bytes = 700 * kMiB};
  tiny.wanted = {HbmWish::kPercent, 1};
  ExpectRefused(tiny, absl::StatusCode::kResourceExhausted, {"700 MiB"});
}

TEST(HbmSizeTest, SharesOfTheLargestFiguresAreRight) {
  EXPECT_EQ(HbmReserveBytes(uint64_t{100} << 56), kGiB + (uint64_t{2} << 56));
  EXPECT_EQ(HbmReserveBytes(0), kGiB);
  HbmSizeOptions options = Auto(uint64_t{1} << 63, uint64_t{1} << 63);
  EXPECT_EQ(Size(options).bytes, kPoolBytesMax);
  options.wanted = {HbmWish::kPercent, 50};
  ExpectRefused(options, absl::StatusCode::kResourceExhausted,
                {"50%, 4294967296.0 GiB,", "at most pool.hbm_bytes: 8388608MiB"});
}

TEST(HbmSizeTest, NoFiguresWrapAndThePromiseHoldsForAll) {
  Rng rng(11);
  const auto any = [&rng] { return (rng.Next() >> rng.Below(64)) | rng.Below(2); };
  uint64_t sized = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    HbmSizeOptions options;
    options.total_bytes = any();
    options.free_bytes = rng.Chance(1, 8) ? any() : options.total_bytes - options.total_bytes / 7;
    options.wanted = {static_cast<HbmWish>(rng.Below(3)),
                      rng.Chance(1, 2) ? any() : rng.Below(120)};
    if (rng.Chance(1, 2)) options.engine_bytes = any();
    const auto size = SizeHbmPool(options);
    if (!size.ok()) {
      ++refused;
      continue;
    }
    ++sized;
    ASSERT_EQ(size->bytes % kHbmStepBytes, 0u);
    ASSERT_GE(size->bytes, kHbmBytesMin);
    ASSERT_LE(size->bytes, kPoolBytesMax);
    ASSERT_LE(HbmReserveBytes(options.total_bytes), options.free_bytes);
    ASSERT_LE(size->bytes, options.free_bytes - HbmReserveBytes(options.total_bytes));
    const uint64_t used = options.total_bytes - options.free_bytes;
    const uint64_t engines = options.engine_bytes.value_or(0);
    if (engines > used) {
      ASSERT_LE(engines - used, options.free_bytes - size->bytes);
    }
  }
  EXPECT_GT(sized, 500u);
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace crumb
