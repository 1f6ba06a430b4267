// The arithmetic and the refusals of the GPU benchmark, over kernels that only count: every
// interval is a millisecond long.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/gpu/cuda_fake_runtime.h"
#include "tests/unit/gpu/codec/cuda_fake_codec.h"
#include "tests/unit/gpu/codec/gpu_bench_case.h"

namespace crumb {
namespace {

using codec_test::SmallBenchCase;
using testing::HasSubstr;

class GpuBenchFakeTest : public testing::Test {
 protected:
  void SetUp() override { TheFakeCodec() = FakeCodec(); }

  GpuBenchDevice device_;
};

TEST_F(GpuBenchFakeTest, TheCopyReadsAndWritesWhatIsFreeAtMost) {
  const auto device = OpenGpuBench(0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "a fake");
  EXPECT_EQ(device->compute_major, 9);
  // A quarter of what is free, there and back, twenty times a millisecond.
  EXPECT_NEAR(device->copy_bytes_per_us, 2.0 * (72 << 20) * 20 / 1000, 1.0);
  TheFakeCodec().free_bytes = 100 << 20;
  const auto little = OpenGpuBench(0);
  EXPECT_EQ(little.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(little.status().message()), HasSubstr("only 100 MiB are free"));
  EXPECT_EQ(OpenGpuBench(1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenGpuBench(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GpuBenchFakeTest, ATimeIsThatOfOneLaunch) {
  for (const CodecKind kind : {CodecKind::kOscarInt2, CodecKind::kCrumbInt2}) {
    TheFakeCodec() = FakeCodec();
    const auto result = MeasureGpuCodec(device_, SmallBenchCase(kind));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->rows.size(), 3u);
    for (const GpuBenchRow& row : result->rows) {
      EXPECT_EQ(row.why_not, "");
      ASSERT_EQ(row.times.size(), 2u);
      EXPECT_EQ(row.times[0].pages, 8u);
      EXPECT_EQ(row.times[1].pages, 1u);
      EXPECT_NEAR(row.times[0].burst_us, 1000.0, 1e-6);
      EXPECT_NEAR(row.times[0].sustained_us, 100.0, 1e-6);
    }
    // For each number of pages: a first one, a burst, ten to guess by, five rounds of ten.
    const uint64_t launches = 2 * (1 + 1 + 10 + 50);
    EXPECT_EQ(TheFakeCodec().encodes % launches, 0u);
    EXPECT_GE(TheFakeCodec().encodes, launches);
    EXPECT_EQ(TheFakeCodec().decodes % launches, 0u);
    EXPECT_EQ(TheFakeCodec().rotated, TheFakeCodec().decodes);
  }
}

TEST_F(GpuBenchFakeTest, ARoundTakesTwentyMilliseconds) {
  GpuBenchCase wanted = SmallBenchCase(CodecKind::kNaiveInt2);
  wanted.pages = {1};
  wanted.ways = {GpuBenchWay::kDecode};
  wanted.bursts = 0;
  wanted.sustained_launches = 0;
  const auto result = MeasureGpuCodec(device_, wanted);
  ASSERT_TRUE(result.ok()) << result.status();
  // A hundred microseconds each by the guess.
  EXPECT_NEAR(result->rows[0].times[0].sustained_us, 1000.0 / 200, 1e-6);
  EXPECT_EQ(TheFakeCodec().decodes, 1u + 10 + 5 * 200);
}

TEST_F(GpuBenchFakeTest, WhatDoesNotFitIsRefusedBeforeItIsTaken) {
  GpuBenchCase wanted = SmallBenchCase(CodecKind::kOscarInt2);
  wanted.pages = {kGpuBenchPagesMax};
  wanted.heads = 64;
  const auto result = MeasureGpuCodec(device_, wanted);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("288 MiB are free"));
  EXPECT_EQ(TheFakeCodec().encodes, 0u);
}

TEST_F(GpuBenchFakeTest, AKindWithoutKernelsSaysWhy) {
  const auto result = MeasureGpuCodec(device_, SmallBenchCase(CodecKind::kRaw));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->rows.size(), 3u);
  EXPECT_THAT(result->rows[0].why_not, HasSubstr("raw has no kernel"));
  EXPECT_TRUE(result->rows[0].times.empty());
  EXPECT_EQ(result->payload_page_bytes, 0u);
}

TEST_F(GpuBenchFakeTest, KernelsThatFailOrRefusePagesAreErrors) {
  GpuBenchCase wanted = SmallBenchCase(CodecKind::kInt4);
  wanted.bursts = 0;
  TheFakeCodec().encode_reports = true;
  EXPECT_THAT(std::string(MeasureGpuCodec(device_, wanted).status().message()),
              HasSubstr("page 0 was refused"));
  TheFakeCodec().encode_fails = true;
  EXPECT_THAT(std::string(MeasureGpuCodec(device_, wanted).status().message()),
              HasSubstr("launching encode"));
}

TEST_F(GpuBenchFakeTest, WhyThereIsNoGpuNamesWhatIsMissing) {
  fake_cuda::SetDeviceCountError(cudaErrorInsufficientDriver);
  TheFakeCodec().driver_version = 12040;
  EXPECT_THAT(
      std::string(OpenGpuBench(0).status().message()),
      testing::AllOf(HasSubstr("for CUDA 12.4, this build needs 13.0"), HasSubstr("580 or newer")));
  // CUDA says of a missing driver that it is too old.
  TheFakeCodec().driver_version = 0;
  EXPECT_THAT(std::string(OpenGpuBench(0).status().message()),
              testing::AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("nvidia-smi")));
  fake_cuda::SetDeviceCountError(0);
}

TEST_F(GpuBenchFakeTest, KernelsThatDoNotFitAreToldFromThoseThatAreNotThere) {
  const GpuBenchCase wanted = SmallBenchCase(CodecKind::kInt4);
  // Decode is needed, encode is not.
  TheFakeCodec().encode_prepared = cudaErrorInvalidValue;
  const auto without = MeasureGpuCodec(device_, wanted);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(without->rows[0].why_not, HasSubstr("too little shared memory to encode"));
  EXPECT_FALSE(without->rows[1].times.empty());
  TheFakeCodec().encode_prepared = cudaErrorNoKernelImageForDevice;
  const auto none = MeasureGpuCodec(device_, wanted);
  ASSERT_TRUE(none.ok()) << none.status();
  for (const GpuBenchRow& row : none->rows) {
    EXPECT_THAT(row.why_not, HasSubstr("CMAKE_CUDA_ARCHITECTURES"));
    EXPECT_TRUE(row.times.empty());
  }
}

}  // namespace
}  // namespace crumb
