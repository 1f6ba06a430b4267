// The oracle convicts what it must and nothing else.
#include "tests/bench/kill9_model.h"

#include <gtest/gtest.h>

namespace crumb {
namespace {

using client::Code;

TEST(Kill9Model, ValuesNameTheirKeyAndGeneration) {
  std::vector<uint8_t> value(5001);
  FillValue(7, 3, absl::MakeSpan(value));
  EXPECT_EQ(GenerationOf(7, value), 3u);
  EXPECT_EQ(GenerationOf(8, value), 0u);
  for (size_t at : {size_t{0}, size_t{9}, size_t{13}, size_t{2500}, value.size() - 1}) {
    value[at] ^= 1;
    EXPECT_EQ(GenerationOf(7, value), 0u) << at;
    value[at] ^= 1;
  }
  std::vector<uint8_t> torn(5001);
  FillValue(7, 4, absl::MakeSpan(torn));
  std::copy(value.begin(), value.begin() + 4096, torn.begin());
  EXPECT_EQ(GenerationOf(7, torn), 0u);
}

TEST(Kill9Model, LossyValuesAreNearTheirOwnGenerationOnly) {
  std::vector<uint8_t> value(4096);
  FillBf16(7, 3, absl::MakeSpan(value));
  EXPECT_EQ(DistanceBf16(7, 3, value), 0.0);
  EXPECT_GT(DistanceBf16(7, 2, value), 1.0);
  EXPECT_GT(DistanceBf16(8, 3, value), 1.0);
  EXPECT_EQ(DistanceBf16(7, 3, std::vector<uint8_t>(4096, 0)), 1.0);
}

TEST(Kill9Model, ADurablePageMustComeBack) {
  KeyModel key;
  EXPECT_EQ(key.OnPut(1, Code::kOk, true), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 1), "");
  EXPECT_EQ(key.OnGet(Code::kBusy, 0), "");
  EXPECT_NE(key.OnGet(Code::kMiss, 0), "");
}

TEST(Kill9Model, AnythingElseMayBeForgotten) {
  KeyModel key;
  key.OnPut(1, Code::kOk, false);
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  key.OnPut(2, Code::kUnavailable, true);
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 2), "");
}

TEST(Kill9Model, WrongAndStaleBytesAreAccused) {
  KeyModel key;
  key.OnPut(1, Code::kOk, true);
  EXPECT_NE(key.OnGet(Code::kOk, 0), "");
  EXPECT_EQ(key.OnDelete(Code::kOk), "");
  EXPECT_NE(key.OnGet(Code::kOk, 1), "");
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  key.OnPut(2, Code::kOk, true);
  EXPECT_NE(key.OnGet(Code::kOk, 1), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 2), "");
}

TEST(Kill9Model, AnUnansweredDeleteLeavesBothOpen) {
  KeyModel key;
  key.OnPut(1, Code::kOk, true);
  EXPECT_EQ(key.OnDelete(Code::kUnavailable), "");
  KeyModel other = key;
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  EXPECT_EQ(other.OnGet(Code::kOk, 1), "");
}

TEST(Kill9Model, ExistsKeepsWhatIsThereAndMakesItDurable) {
  KeyModel key;
  key.OnPut(1, Code::kOk, false);
  EXPECT_EQ(key.OnPut(2, Code::kExists, true), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 1), "");
  EXPECT_NE(key.OnGet(Code::kOk, 2), "");
  EXPECT_NE(key.OnGet(Code::kMiss, 0), "");
  KeyModel empty;
  EXPECT_NE(empty.OnPut(1, Code::kExists, false), "");
}

TEST(Kill9Model, ALossyPageNeverChanges) {
  KeyModel key;
  EXPECT_EQ(key.OnSeen(1, 55), "");
  EXPECT_EQ(key.OnSeen(1, 55), "");
  EXPECT_EQ(key.OnSeen(2, 66), "");
  EXPECT_NE(key.OnSeen(1, 56), "");
}

TEST(Kill9Model, NotDurableOnAHealthyDiskIsAccusedAndMayHaveKeptThePageThatWasThere) {
  KeyModel model;
  EXPECT_EQ(model.OnPut(1, Code::kOk, false), "");
  EXPECT_NE(model.OnPut(2, Code::kNotDurable, true), "");
  EXPECT_EQ(model.OnGet(Code::kOk, 1), "");
}

TEST(Kill9Model, WhatWasPutBeforeAFlushThatWasAnsweredIsGone) {
  KeyModel key;
  key.OnFlushes({}, 1, 2);
  EXPECT_EQ(key.OnPut(1, Code::kOk, true), "");
  const std::vector<FlushSpan> done = {{.began = 3, .over = 5, .done = true}};
  KeyModel other = key;
  key.OnFlushes(done, 6, 7);
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  EXPECT_NE(key.OnGet(Code::kOk, 1), "");
  // Asked before the answer: either.
  other.OnFlushes(done, 4, 7);
  EXPECT_EQ(other.OnGet(Code::kOk, 1), "");
  EXPECT_EQ(other.OnGet(Code::kMiss, 0), "");
  EXPECT_EQ(other.OnPut(2, Code::kNotDurable, true), "");
}

TEST(Kill9Model, WhatMeetsAFlushMayStayOrGoAndWhatFollowsItStays) {
  const std::vector<FlushSpan> done = {{.began = 3, .over = 6, .done = true}};
  KeyModel key;
  key.OnFlushes(done, 2, 4);
  EXPECT_EQ(key.OnPut(1, Code::kOk, true), "");
  key.OnFlushes(done, 7, 8);
  EXPECT_EQ(key.OnGet(Code::kOk, 1), "");
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  key.OnFlushes(done, 9, 10);
  EXPECT_EQ(key.OnPut(2, Code::kOk, true), "");
  key.OnFlushes(done, 11, 12);
  EXPECT_NE(key.OnGet(Code::kMiss, 0), "");
}

TEST(Kill9Model, AFlushWithoutAnAnswerLeavesBothOpen) {
  const std::vector<FlushSpan> lost = {{.began = 3, .over = 6, .done = false}};
  KeyModel key;
  key.OnFlushes({}, 1, 2);
  EXPECT_EQ(key.OnPut(1, Code::kOk, true), "");
  key.OnFlushes(lost, 7, 8);
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 1), "");
}

TEST(Kill9Model, AKillMayBringBackWhatWasReclaimedBeforeAPutInMemoryAlone) {
  KeyModel key;
  key.reclaims = true;
  EXPECT_EQ(key.OnPut(1, Code::kOk, false), "");
  EXPECT_EQ(key.OnPut(2, Code::kOk, false), "");
  EXPECT_EQ(key.OnGet(Code::kOk, 2), "");
  KeyModel living = key;
  EXPECT_NE(living.OnGet(Code::kOk, 1), "");
  KeyModel deleted = key;
  EXPECT_EQ(deleted.OnDelete(Code::kOk), "");
  deleted.OnKill();
  EXPECT_NE(deleted.OnGet(Code::kOk, 1), "");
  KeyModel durable = key;
  EXPECT_EQ(durable.OnPut(3, Code::kOk, true), "");
  durable.OnKill();
  EXPECT_NE(durable.OnGet(Code::kOk, 1), "");
  KeyModel flushed = key;
  flushed.OnFlushes({{.began = 3, .over = 5, .done = true}}, 6, 7);
  flushed.OnKill();
  EXPECT_NE(flushed.OnGet(Code::kOk, 1), "");
  key.OnKill();
  EXPECT_EQ(key.OnGet(Code::kOk, 1), "");
  EXPECT_NE(key.OnGet(Code::kOk, 2), "") << "the newest counts";
  // Where nothing is reclaimed a put is the end of what came before.
  KeyModel strict;
  EXPECT_EQ(strict.OnPut(1, Code::kOk, false), "");
  EXPECT_EQ(strict.OnPut(2, Code::kOk, false), "");
  strict.OnKill();
  EXPECT_NE(strict.OnGet(Code::kOk, 1), "");
}

TEST(Kill9Model, ALogThatReclaimsKeepsDurablePagesForAWhile) {
  KeyModel key;
  EXPECT_EQ(key.OnPut(1, Code::kOk, true), "");
  key.durable_bytes = 1000;
  key.OnWritten(1500, 500);
  EXPECT_NE(key.OnGet(Code::kMiss, 0), "");
  key.OnWritten(1501, 500);
  EXPECT_EQ(key.OnGet(Code::kMiss, 0), "");
}

}  // namespace
}  // namespace crumb
