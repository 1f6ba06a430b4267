// The benchmark of the GPU codec on a GPU: it measures what has kernels, names what has none, and
// refuses what does not fit before it allocates.
#include <gmock/gmock.h>

#include "tests/unit/gpu/codec/gpu_bench_case.h"

namespace crumb {
namespace {

using codec_test::SmallBenchCase;
using testing::HasSubstr;

TEST(GpuBenchTest, MeasuresEveryKindThatHasKernels) {
  const auto device = OpenGpuBench(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_FALSE(device->name.empty());
  EXPECT_GT(device->copy_bytes_per_us, 1e3);
  for (const CodecKind kind : {CodecKind::kOscarInt2, CodecKind::kInt4, CodecKind::kCrumbInt2}) {
    const auto result = MeasureGpuCodec(*device, SmallBenchCase(kind));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->rows.size(), 3u);
    EXPECT_EQ(result->raw_page_bytes, 2u * 2 * 64 * 128 * 2);
    EXPECT_GT(result->payload_page_bytes, 0u);
    EXPECT_LT(result->payload_page_bytes, result->raw_page_bytes / 3);
    for (const GpuBenchRow& row : result->rows) {
      EXPECT_EQ(row.why_not, "") << ToString(kind) << " " << ToString(row.way);
      ASSERT_EQ(row.times.size(), 2u);
      for (const GpuBenchTime& time : row.times) {
        EXPECT_GT(time.burst_us, 0.5);
        EXPECT_GT(time.sustained_us, 0.5);
        EXPECT_LT(time.sustained_us, 1e5);
      }
    }
    EXPECT_GT(result->FloorUs(*device, 8), result->FloorUs(*device, 1));
  }
}

TEST(GpuBenchTest, AKindWithoutKernelsSaysWhy) {
  GpuBenchDevice device;
  const auto result = MeasureGpuCodec(device, SmallBenchCase(CodecKind::kRaw));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->rows[0].why_not, HasSubstr("raw has no kernel"));
  EXPECT_TRUE(result->rows[0].times.empty());
}

TEST(GpuBenchTest, WhatDoesNotFitIsRefusedWithTheFigures) {
  GpuBenchDevice device;
  GpuBenchCase wanted = SmallBenchCase(CodecKind::kOscarInt2);
  wanted.heads = 8;
  wanted.pages = {kGpuBenchPagesMax};
  wanted.layers = 2;
  const auto result = MeasureGpuCodec(device, wanted);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("MiB are free"));
}

TEST(GpuBenchTest, WrongCasesAndDevicesAreNamed) {
  EXPECT_EQ(OpenGpuBench(4096).status().code(), absl::StatusCode::kInvalidArgument);
  GpuBenchDevice device;
  for (int fault = 0; fault < 4; ++fault) {
    GpuBenchCase wanted = SmallBenchCase(CodecKind::kOscarInt2);
    if (fault == 0) wanted.page_tokens = 17;
    if (fault == 1) wanted.pages = {0};
    if (fault == 2) wanted.pages = {};
    if (fault == 3) wanted.pages = {kGpuBenchPagesMax + 1};
    EXPECT_EQ(MeasureGpuCodec(device, wanted).status().code(), absl::StatusCode::kInvalidArgument)
        << fault;
  }
}

}  // namespace
}  // namespace crumb
