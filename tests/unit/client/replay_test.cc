// Traces are read with care, and the simulated hits are those that can be counted by hand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "client/cli/replay_sim.h"
#include "client/cli/replay_tiers.h"
#include "client/cli/replay_trace.h"

namespace crumb::cli {
namespace {

Trace TraceOf(const std::string& text) {
  std::istringstream in(text);
  auto trace = ReadTrace(in);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return *std::move(trace);
}

TEST(ReplayTraceTest, IdsBecomeNumbersAndParents) {
  const Trace trace = TraceOf(
      "{\"input_length\": 1000, \"hash_ids\": [7, 9]}\n\n"
      "{\"input_length\": 1400, \"hash_ids\": [7, 8, 1]}\n");
  EXPECT_EQ(trace.reads, (std::vector<uint32_t>{0, 1, 0, 2, 3}));
  EXPECT_EQ(trace.request_ends, (std::vector<uint32_t>{2, 5}));
  EXPECT_EQ(trace.parents, (std::vector<uint32_t>{Trace::kNoParent, 0, 0, 2}));
  EXPECT_EQ(trace.block_tokens, 512u);
  EXPECT_EQ(trace.request(1).size(), 3u);
}

TEST(ReplayTraceTest, WhatIsNoRequestIsRefusedWithItsLine) {
  const char* const bad[] = {"",
                             "{",
                             "[]",
                             "{\"hash_ids\": 3}",
                             "{\"hash_ids\": [-1]}",
                             "{\"hash_ids\": [1.5]}",
                             "{\"hash_ids\": [1], \"input_length\": -2}",
                             "{\"hash_ids\": [1], \"input_length\": 99999999999999}"};
  for (const char* text : bad) {
    std::istringstream in(std::string("{\"input_length\": 1, \"hash_ids\": []}\n") + text);
    const auto trace = ReadTrace(in);
    ASSERT_FALSE(trace.ok()) << text;
    if (*text != 0) {
      EXPECT_NE(trace.status().message().find("line 2"), std::string::npos) << trace.status();
    }
  }
  EXPECT_FALSE(ReadTraceFile("/nonexistent/trace").ok());
}

TEST(ReplaySimTest, ALoopOverMoreThanFitsIsLruWorstCase) {
  std::string text;
  for (int round = 0; round < 10; ++round) {
    for (int id = 0; id < 4; ++id) {
      text += "{\"input_length\": 16, \"hash_ids\": [" + std::to_string(id) + "]}\n";
    }
  }
  const Trace trace = TraceOf(text);
  EXPECT_EQ(ReplayPolicy(trace, PolicyKind::kLru, 3)->hits, 0u);
  // The optimum need not keep what it just read: of 36 reads that could hit it loses one in four.
  EXPECT_EQ(ReplayBelady(trace, 3).hits, 27u);
  EXPECT_EQ(ReplayBelady(trace, 4).hits, 36u);
  EXPECT_EQ(ReplayPolicy(trace, PolicyKind::kS3Fifo, 4)->hits, 36u);
  EXPECT_EQ(ReplayPolicy(trace, PolicyKind::kS3Fifo, 0)->hits, 0u);
}

// The first requests of a public trace: every policy stays under the optimum and grows with room.
TEST(ReplaySimTest, NoPolicyBeatsTheOptimumOnATrace) {
  const char* const data = std::getenv("CRUMB_TEST_DATA");
  ASSERT_NE(data, nullptr);
  const auto trace = ReadTraceFile(std::string(data) + "/traces/conversation_head.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 512u);
  const double unlimited = ReplayBelady(*trace, trace->blocks()).ratio();
  for (const PolicyKind kind : {PolicyKind::kS3Fifo, PolicyKind::kLru}) {
    EXPECT_EQ(ReplayPolicy(*trace, kind, trace->blocks())->ratio(), unlimited);
    for (const uint32_t part : {2, 5, 10, 20}) {
      const auto result = ReplayPolicy(*trace, kind, trace->blocks() / part);
      ASSERT_TRUE(result.ok());
      EXPECT_LE(result->ratio(), ReplayBelady(*trace, trace->blocks() / part).ratio());
      // Only the last page of a chain that is still being put can go before what follows it.
      EXPECT_LE(result->stranded, result->reads / 1000) << ToString(kind);
    }
  }
}

// One block a request, in the order of the digits.
Trace Digits(const std::string& digits) {
  std::string text;
  for (const char digit : digits) {
    text += std::string("{\"input_length\": 16, \"hash_ids\": [") + digit + "]}\n";
  }
  return TraceOf(text);
}

TierResult Tiers(const std::string& digits, NvmeAdmission admission, NvmePromotion promotion) {
  const auto result = ReplayTiers(Digits(digits), {.policy = PolicyKind::kLru,
                                                   .admission = admission,
                                                   .promotion = promotion,
                                                   .dram_pages = 2,
                                                   .nvme_pages = 3});
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

TEST(ReplayTiersTest, WhatLeavesMemoryIsFoundOnNvmeAndTheOldestRecordGivesWay) {
  // 1 and 2 fill memory; each new one writes one out. 1 is read back, for which 4 is written and
  // 1's own record gives way; for 6 it is 5 and the record of 2.
  const TierResult result = Tiers("1234516", NvmeAdmission::kAll, NvmePromotion::kFirst);
  EXPECT_EQ(result.reads, 7u);
  EXPECT_EQ(result.dram_hits, 0u);
  EXPECT_EQ(result.nvme_hits, 1u);
  EXPECT_EQ(result.written, 5u);
  EXPECT_EQ(Tiers("12345162", NvmeAdmission::kAll, NvmePromotion::kFirst).nvme_hits, 1u);
  EXPECT_EQ(Tiers("12345163", NvmeAdmission::kAll, NvmePromotion::kFirst).nvme_hits, 2u);
}

TEST(ReplayTiersTest, SeenWritesWhatWasGotOrCameBack) {
  const auto written = [](const std::string& digits) {
    return Tiers(digits, NvmeAdmission::kSeen, NvmePromotion::kFirst).written;
  };
  EXPECT_EQ(written("123456789"), 0u);
  EXPECT_EQ(written("1123456789"), 1u);  // 1 was got
  EXPECT_EQ(written("12341567"), 1u);    // 1 came back
}

TEST(ReplayTiersTest, SecondLeavesAPageOnNvmeOnce) {
  const auto rules = [](const std::string& digits) {
    return Tiers(digits, NvmeAdmission::kAll, NvmePromotion::kSecond);
  };
  EXPECT_EQ(rules("1231").dram_hits + rules("1231").written, 1u);  // nothing left memory for it
  EXPECT_EQ(rules("1231").nvme_hits, 1u);
  EXPECT_EQ(rules("123123").dram_hits, 2u) << "2 and 3 stayed";
  EXPECT_EQ(rules("12311").nvme_hits, 2u);
  EXPECT_EQ(rules("123111").dram_hits, 1u) << "raised by the second";
}

}  // namespace
}  // namespace crumb::cli
