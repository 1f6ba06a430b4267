// What the demo prints: figures in the right places, whatever the numbers.
#include "client/demo/print_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace crumb::demo {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report Sample() {
  Report report;
  report.data_plane = "ucx 1.13.1";
  report.namespaces = 2;
  CodecRow row;
  row.codec = row.codec_in_effect = "crumb-int2";
  row.pages_put = 16;
  row.pages_got = 15;
  row.pages_missed = 1;
  row.raw_bytes = 147456;
  row.packed_bytes = 21424;
  row.stored_bytes = 24576;
  row.put_seconds = 0.147456;
  row.get_seconds = 0.0;
  row.hits[static_cast<size_t>(client::Tier::kDram)] = 10;
  row.hits[static_cast<size_t>(client::Tier::kNvme)] = 5;
  row.got_at = {2, 5, 8};
  row.raw_at = {2, 0, 3};
  row.error = {.logit = 0.0625, .logit_centred = 0.1875, .output = 0.03125};
  report.rows.push_back(row);
  return report;
}

TEST(PrintReport, TableHoldsTheFigures) {
  const std::string table = ReportTable(Sample());
  EXPECT_THAT(table,
              HasSubstr("crumb-int2       147456    24576   6.00   0.0625   0.1875   0.0312 "
                        "     16.0       0.0      2      3      10     10      5       1\n"));
  EXPECT_THAT(table, HasSubstr("16 pages of 64 tokens in 2 namespaces per codec over ucx 1.13.1"));
  EXPECT_THAT(table, Not(HasSubstr("stored as")));
}

TEST(PrintReport, SaysWhichPagesWereRawAndNothingMore) {
  Report report = Sample();
  EXPECT_THAT(ReportTable(report),
              HasSubstr("2 of 2 sink pages, 3 of 8 recent ones, 0 of 5 between. Packed: 10.\n"
                        "Recent pages stay raw while"));
  report.rows[0].raw_at = {2, 5, 8};  // of a layout without packing
  const std::string table = ReportTable(report);
  EXPECT_THAT(table,
              HasSubstr("2 of 2 sink pages, 8 of 8 recent ones, 5 of 5 between. Packed: 0.\n"));
  EXPECT_THAT(table, Not(HasSubstr("Recent pages stay raw while")));
}

TEST(PrintReport, ANoteIsPrintedWhereTheDaemonChoseAnotherCodec) {
  Report report = Sample();
  report.rows[0].codec_in_effect = "crumb-int4";
  report.rows[0].note = "no rotation set for this model";
  EXPECT_THAT(ReportTable(report),
              HasSubstr("crumb-int2: stored as crumb-int4: no rotation set for this model\n"));
}

TEST(PrintReport, JsonHoldsTheSame) {
  const auto json = nlohmann::json::parse(ReportJson(Sample()));
  EXPECT_EQ(json["codecs"][0]["codec"], "crumb-int2");
  EXPECT_EQ(json["codecs"][0]["ratio"], 6.0);
  EXPECT_EQ(json["codecs"][0]["output_error"], 0.03125);
  EXPECT_EQ(json["codecs"][0]["hits"]["nvme"], 5);
  EXPECT_EQ(json["codecs"][0]["pages_exact"], 5);
  EXPECT_EQ(json["codecs"][0]["pages_raw"]["sink"], 2);
  EXPECT_EQ(json["codecs"][0]["pages_raw"]["recent"], 3);
  EXPECT_EQ(json["namespaces"], 2);
}

TEST(PrintReport, VerifyNamesPagesAndTiers) {
  VerifyReport report{.data_plane = "grpc", .pages = 16, .seconds = 0.5, .hits = {}};
  report.hits[static_cast<size_t>(client::Tier::kNvme)] = 16;
  EXPECT_EQ(VerifyText(report),
            "16 of 16 durable pages came back byte-equal over grpc (dram 0, nvme 16) in 0.50 s\n");
  EXPECT_EQ(nlohmann::json::parse(VerifyJson(report))["hits"]["nvme"], 16);
}

}  // namespace
}  // namespace crumb::demo
