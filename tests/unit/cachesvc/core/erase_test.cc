// Deletes: what is deleted stays deleted, in every tier and after a restart.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

TEST(EngineDeleteTest, ADeletedPageStaysDeletedAfterAPowerLoss) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
}

TEST(EngineDeleteTest, APageDeletedWhileItIsWrittenOutStaysDeleted) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 0u : 3u};
  });
  for (uint64_t key = 1000; key < 1000 + kPages - 1; ++key) rig.Put(key, PageOf(key));
  rig.worker().Fill(0, PageOf(50));
  rig.worker().Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(50)}}});
  for (int i = 0; i < 6; ++i) rig.Turn();  // page 1 is on its way to the device
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Settle();
  ExpectMiss(rig, 1);
  const MemDevice::Survives everything = [](const MemDevice::Write&, uint64_t) { return true; };
  rig.Restart(&everything);
  ExpectMiss(rig, 1);
}

TEST(EngineDeleteTest, APutAfterADeleteOfTheSameKeyIsNotHitByItsTombstone) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 2}; });
  rig.worker().Fill(0, PageOf(2));
  const uint64_t erase =
      rig.worker().Send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(1)}}});
  const uint64_t put = rig.worker().Send(
      {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}, .flags = kWireFlagDurable});
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(erase).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker().Answer(put).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  std::vector<uint8_t> got;
  ASSERT_EQ(rig.Get(1, &got).result, BlockResult::kOk);
  EXPECT_EQ(got, AfterLoss(PageOf(2), 4));
}

TEST(EngineDeleteTest, ADeleteAfterOneThatFailedHoldsAfterARestart) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5};
  });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo);
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo) << "still not durable";
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk);
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kMiss);
}

TEST(EngineDeleteTest, ADeleteWaitsForTheWriteOfAnImageThatWasReplacedMeanwhile) {
  RigOptions options = Tiered();
  options.main_bytes = 1 << 20;
  Rig rig(options);
  ASSERT_TRUE(rig.engine->BindLayout(2, rig.Bind(CodecKind::kRaw)).ok());
  ASSERT_TRUE(rig.engine->RegisterRegions({1}, 2, 2, rig.worker().Spec()).ok());
  rig.Put(9, PageOf(9), kWireFlagDurable);  // opens the first segment
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 0u : 200u};
  });
  const auto send = [&rig](RequestSpec spec) {
    const uint64_t id = rig.worker().Send(spec);
    for (int i = 0; i < 8; ++i) rig.Turn();
    return id;
  };
  RequestSpec put{
      .type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}, .flags = kWireFlagDurable};
  put.deadline_us = 100;
  const uint64_t hasty = send(put);
  rig.clock.Advance(100);
  const uint64_t better = send({.type = WireType::kPut,
                                .blocks = {{.digest = DigestNumber(1)}},
                                .layout = 2,
                                .region_set = 2});
  EXPECT_EQ(rig.worker().Answer(hasty).result, BlockResult::kNotDurable);
  EXPECT_EQ(rig.worker().Answer(better).result, BlockResult::kOk);
  const uint64_t erase = send({.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(1)}}});
  EXPECT_FALSE(rig.worker().Answered(erase)) << "the older image may still come back";
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(erase).result, BlockResult::kOk);
  const MemDevice::Survives everything = [](const MemDevice::Write&, uint64_t) { return true; };
  rig.Restart(&everything);
  ExpectMiss(rig, 1);
  ExpectHit(rig, 9, Tier::kNvme);
}

TEST(EngineDeleteTest, AFlushOfATenantDoesNotHideThatADeleteFailed) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5};
  });
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo);
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  absl::Status status;
  rig.engine->Flush({.tenant = "t"}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "the page is still on the disk";
  rig.engine->Flush({}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_TRUE(status.ok()) << status;
  rig.engine->Flush({.tenant = "t"}, [&status](const absl::Status& said) { status = said; });
  rig.Settle();
  EXPECT_TRUE(status.ok()) << status;
  rig.Restart(&kNothingSurvives);
  ExpectMiss(rig, 1);
}

}  // namespace
}  // namespace crumb::testing
