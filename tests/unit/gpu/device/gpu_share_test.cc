// The wire form of shared GPU memory: fixed bytes, and nothing of another process believed.
#include "gpu/device/gpu_share.h"

#include <gtest/gtest.h>

#include <vector>

#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

GpuShare Sample() {
  GpuShare share;
  for (size_t i = 0; i < share.handle.size(); ++i) share.handle[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < share.device.size(); ++i) share.device[i] = static_cast<uint8_t>(0xa0 + i);
  share.allocation_bytes = 0x0102030405;
  share.offset = 0x0a0b;
  share.bytes = 0x0c0d0e;
  return share;
}

TEST(GpuShareTest, BytesAreFixed) {
  const auto bytes = EncodeGpuShare(Sample());
  ASSERT_EQ(bytes.size(), 104u);
  EXPECT_EQ(bytes[63], 63);
  EXPECT_EQ(bytes[64], 0xa0);
  const std::vector<uint8_t> numbers(bytes.begin() + 80, bytes.end());
  EXPECT_EQ(numbers, (std::vector<uint8_t>{5, 4, 3, 2, 1,    0,    0,    0, 0x0b, 0x0a, 0, 0,
                                           0, 0, 0, 0, 0x0e, 0x0d, 0x0c, 0, 0,    0,    0, 0}));
  const auto parsed = ParseGpuShare(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Sample());
}

TEST(GpuShareTest, RangesThatPassTheirAllocationAreRefused) {
  const auto parse = [](uint64_t allocation, uint64_t offset, uint64_t bytes) {
    GpuShare share = Sample();
    share.allocation_bytes = allocation, share.offset = offset, share.bytes = bytes;
    return ParseGpuShare(EncodeGpuShare(share)).status().code();
  };
  EXPECT_EQ(parse(100, 0, 100), absl::StatusCode::kOk);
  EXPECT_EQ(parse(100, 99, 1), absl::StatusCode::kOk);
  EXPECT_EQ(parse(kGpuAllocationBytesMax, 0, kGpuAllocationBytesMax), absl::StatusCode::kOk);
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(parse(100, 0, 0), kWrong);
  EXPECT_EQ(parse(100, 100, 1), kWrong);
  EXPECT_EQ(parse(100, 99, 2), kWrong);
  EXPECT_EQ(parse(0, 0, 1), kWrong);
  EXPECT_EQ(parse(100, UINT64_MAX, 2), kWrong);
  EXPECT_EQ(parse(100, 50, UINT64_MAX - 40), kWrong);
  EXPECT_EQ(parse(kGpuAllocationBytesMax + 1, 0, 1), kWrong);
}

TEST(GpuShareTest, OtherLengthsAreRefused) {
  const auto bytes = EncodeGpuShare(Sample());
  std::vector<uint8_t> longer(bytes.begin(), bytes.end());
  longer.push_back(0);
  for (size_t size = 0; size <= longer.size(); ++size) {
    EXPECT_EQ(ParseGpuShare(Bytes(longer).first(size)).ok(), size == kGpuShareBytes) << size;
  }
}

TEST(GpuShareTest, AnyBytesParseToARangeInsideOrNot) {
  Rng rng(7);
  for (int i = 0; i < 20000; ++i) {
    auto bytes = EncodeGpuShare(Sample());
    for (int k = 0; k < 4; ++k) {
      bytes[80 + rng.Next() % 24] = static_cast<uint8_t>(rng.Next());
    }
    const auto parsed = ParseGpuShare(bytes);
    if (!parsed.ok()) continue;
    ASSERT_GT(parsed->bytes, 0u);
    ASSERT_LE(parsed->bytes, parsed->allocation_bytes);
    ASSERT_LE(parsed->offset, parsed->allocation_bytes - parsed->bytes);
  }
}

}  // namespace
}  // namespace crumb
