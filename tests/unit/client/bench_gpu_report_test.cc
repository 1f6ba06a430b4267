// The report of `crumbctl bench codec --device N` from figures that are given.
#include "client/cli/bench_gpu_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace crumb::cli {
namespace {

using testing::HasSubstr;

GpuBenchReport Report() {
  GpuBenchReport report;
  report.device.index = 1;
  report.device.name = "A GPU";
  report.device.compute_major = 9;
  report.device.copy_bytes_per_us = 1000.0;
  GpuBenchResult result;
  result.raw_page_bytes = 8000;
  result.payload_page_bytes = 2000;
  result.rows.push_back({GpuBenchWay::kEncode, "no encode kernel", {}});
  result.rows.push_back({GpuBenchWay::kDecode, "", {{100, 1700.0, 1500.0}, {1, 21.0, 20.0}}});
  report.results.emplace_back(CodecKind::kCrumbInt2, result);
  return report;
}

TEST(GpuBenchReportTest, RatiosAreAgainstTheCopyOfRawAndPackedBytes) {
  const auto document = nlohmann::json::parse(GpuReportJson(Report()));
  EXPECT_EQ(document["device"]["index"], 1);
  EXPECT_EQ(document["device"]["compute"], "9.0");
  EXPECT_EQ(document["device"]["copy_bytes_per_second"], 1e9);
  EXPECT_EQ(document["effort"], "normal");
  const auto& ways = document["codecs"][0]["ways"];
  ASSERT_EQ(ways.size(), 2u);
  EXPECT_EQ(ways[0]["why_not"], "no encode kernel");
  EXPECT_TRUE(ways[0]["batches"].empty());
  EXPECT_TRUE(ways[1]["why_not"].is_null());
  const auto& large = ways[1]["batches"][0];
  EXPECT_EQ(large["pages"], 100);
  EXPECT_EQ(large["burst_us"], 1700.0);
  EXPECT_DOUBLE_EQ(large["floor_us"], 1000.0);
  EXPECT_DOUBLE_EQ(large["floor_ratio"], 1.5);
  EXPECT_DOUBLE_EQ(large["raw_bytes_per_second"], 8000.0 * 100 / 1500.0 * 1e6);
  EXPECT_DOUBLE_EQ(ways[1]["batches"][1]["floor_ratio"], 2.0);
}

TEST(GpuBenchReportTest, TheTableSaysWhatHasNoKernelAndWhy) {
  const std::string text = GpuReportText(Report());
  EXPECT_THAT(text, HasSubstr("no encode kernel"));
  EXPECT_THAT(text, testing::ContainsRegex("crumb-int2 +decode +100 +1700.0 +1500.0 +1 +1.50"));
  EXPECT_THAT(text, HasSubstr("A GPU (compute 9.0), device 1"));
}

TEST(GpuBenchReportTest, AKindWithoutAnyKernelHasNoFigures) {
  GpuBenchReport report = Report();
  GpuBenchResult none;
  none.rows.push_back({GpuBenchWay::kDecode, "copy its pages", {}});
  report.results = {{CodecKind::kRaw, none}};
  EXPECT_THAT(GpuReportText(report), HasSubstr("copy its pages"));
  const auto document = nlohmann::json::parse(GpuReportJson(report));
  EXPECT_EQ(document["codecs"][0]["payload_bytes"], 0);
}

}  // namespace
}  // namespace crumb::cli
