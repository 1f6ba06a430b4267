// put and get through the engine: what comes back, in every form; the second put; the ladder.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

TEST(EnginePutGetTest, APageComesBackAsItsCodecKeepsIt) {
  Rig rig;
  const std::vector<uint8_t> page = PageOf(1);
  const WireBlockReply put = rig.Put(7, page);
  EXPECT_EQ(put.result, BlockResult::kOk);
  EXPECT_EQ(put.tier, Tier::kDram);
  EXPECT_EQ(put.precision, Precision::kInt2);
  EXPECT_EQ(put.value_bytes, kPageHeaderBytes + kRawBytes / 4);
  std::vector<uint8_t> got;
  const WireBlockReply get = rig.Get(7, &got);
  EXPECT_EQ(get.result, BlockResult::kOk);
  EXPECT_EQ(get.tier, Tier::kDram);
  EXPECT_EQ(get.value_bytes, kRawBytes);
  EXPECT_EQ(got, AfterLoss(page, 4));
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, ARawLayoutGivesBackTheSameBytes) {
  Rig rig({.codec = CodecKind::kRaw});
  const std::vector<uint8_t> page = PageOf(2);
  EXPECT_EQ(rig.Put(1, page).result, BlockResult::kOk);
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, page);
  rig.ExpectAtRest();
}

TEST(EnginePutGetTest, WhatWasNeverPutIsAMiss) {
  Rig rig;
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(1, &got).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kMiss);
}

TEST(EnginePutGetTest, LookupSaysWhereAndHowPreciseWithoutKeepingAnythingAlive) {
  Rig rig;
  rig.Put(1, PageOf(1));
  const WireBlockReply reply = rig.Lookup(1);
  EXPECT_EQ(reply.result, BlockResult::kOk);
  EXPECT_EQ(reply.tier, Tier::kDram);
  EXPECT_EQ(reply.precision, Precision::kInt2);
  rig.ExpectAtRest();
}

}  // namespace
}  // namespace crumb::testing
