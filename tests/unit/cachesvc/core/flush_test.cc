// Flush by everything, tenant and identity: durable in every tier, and nothing in flight brings a
// flushed page back.
#include <gtest/gtest.h>

#include "tests/unit/cachesvc/core/tiered.h"

namespace crumb::testing {
namespace {

absl::Status FlushNow(Rig& rig, const FlushRequest& request) {
  absl::Status result = absl::UnknownError("not done");
  rig.engine->Flush(request, [&result](absl::Status status) { result = std::move(status); });
  rig.Settle();
  return result;
}

FlushRequest EverythingOrTenant(bool everything) {
  FlushRequest request;
  if (!everything) request.tenant = "t";
  return request;
}

TEST(EngineFlushTest, EverythingIsGoneInEveryTierAlsoAfterAPowerLoss) {
  Rig rig(Tiered());
  for (uint64_t key = 0; key < 40; ++key) rig.Put(key, PageOf(key), key % 2 * kWireFlagDurable);
  EXPECT_TRUE(FlushNow(rig, {}).ok());
  EXPECT_EQ(rig.engine->stats().index_entries, 0u);
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 0u);
  rig.Put(100, PageOf(100), kWireFlagDurable);
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.engine->stats().index_entries, 1u);
  EXPECT_EQ(rig.Lookup(100).result, BlockResult::kOk) << "put after the flush";
}

TEST(EngineFlushTest, ATenantsFlushLeavesTheOthers) {
  Rig rig(Tiered());
  ASSERT_TRUE(rig.engine->BindLayout(7, rig.Bind(CodecKind::kCrumbInt2, "b")).ok());
  rig.AddWorker({.session = 2, .tenant = "b", .layout = 7});
  for (uint64_t key = 0; key < 20; ++key) {
    rig.Put(key, PageOf(key), kWireFlagDurable);
    RequestSpec spec{.type = WireType::kPut,
                     .blocks = {{.digest = DigestNumber(key)}},
                     .flags = kWireFlagDurable,
                     .layout = 7};
    rig.worker(1).Fill(0, PageOf(key));
    EXPECT_EQ(rig.Ask(spec, 1).result, BlockResult::kOk);
  }
  EXPECT_TRUE(FlushNow(rig, {.tenant = "b"}).ok());
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.engine->stats().index_entries, 20u);
  for (uint64_t key = 0; key < 20; ++key) EXPECT_EQ(rig.Lookup(key).result, BlockResult::kOk);
}

TEST(EngineFlushTest, AnIdentitysFlushLeavesTheOthers) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  EXPECT_TRUE(FlushNow(rig, {.has_identity = true, .identity = {}}).ok());
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kOk);
  EXPECT_TRUE(FlushNow(rig, {.has_identity = true, .identity = rig.layout->hash()}).ok());
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  rig.Restart(&kNothingSurvives);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
}

TEST(EngineFlushTest, FromTheCallOnNothingIsFoundThoughTheSweepTakesTurns) {
  RigOptions options;
  options.main_bytes = 64 << 20;
  options.staging_bytes = 1 << 20;
  Rig rig(options);
  for (uint64_t key = 0; key < 6000; ++key) rig.Put(key, PageOf(key));
  bool done = false;
  rig.engine->Flush({}, [&done](const absl::Status&) { done = true; });
  const uint64_t id =
      rig.worker().Send({.type = WireType::kLookup, .blocks = {{.digest = DigestNumber(5999)}}});
  rig.Turn();
  rig.Turn();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kMiss);
  rig.Settle();
  EXPECT_TRUE(done);
  EXPECT_EQ(rig.engine->stats().index_entries, 0u);
}

TEST(EngineFlushTest, APutThatBeganBeforeTheFlushDoesNotPublish) {
  for (const bool everything : {true, false}) {
    Rig rig(Tiered());
    rig.queue.steps = 0;
    rig.worker().Fill(0, PageOf(1));
    const uint64_t id =
        rig.worker().Send({.type = WireType::kPut, .blocks = {{.digest = DigestNumber(1)}}});
    rig.Settle();
    bool done = false;
    rig.engine->Flush(EverythingOrTenant(everything),
                      [&done](const absl::Status&) { done = true; });
    rig.Settle();
    EXPECT_TRUE(done);
    rig.queue.steps = 64;
    rig.Settle();
    EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kCancelled);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
    rig.ExpectAtRest();
  }
}

TEST(EngineFlushTest, APageThatIsBeingWrittenDoesNotComeBack) {
  for (const bool everything : {true, false}) {
    Rig rig(Tiered());
    rig.Put(9, PageOf(9), kWireFlagDurable);
    rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 3}; });
    rig.worker().Fill(0, PageOf(1));
    const uint64_t id = rig.worker().Send({.type = WireType::kPut,
                                           .blocks = {{.digest = DigestNumber(1)}},
                                           .flags = kWireFlagDurable});
    for (int i = 0; i < 7 && rig.engine->stats().pool_pages < 2; ++i) rig.Turn();
    EXPECT_TRUE(FlushNow(rig, EverythingOrTenant(everything)).ok());
    EXPECT_NE(rig.worker().Answer(id).result, BlockResult::kOk);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
    const MemDevice::Survives all = [](const MemDevice::Write&, uint64_t) { return true; };
    rig.Restart(&all);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
    EXPECT_EQ(rig.Lookup(9).result, BlockResult::kMiss);
  }
}

TEST(EngineFlushTest, APutThatWaitsToReplaceAPageOnDiskDoesNotPublishAfterAFlush) {
  RigOptions options = Tiered();
  options.log.appends_max = 1;
  Rig rig(options);
  rig.Put(1, PageOf(1), kWireFlagDurable);
  ASSERT_TRUE(rig.engine->BindLayout(2, rig.Bind(CodecKind::kRaw)).ok());
  ASSERT_TRUE(rig.engine->RegisterRegions({1}, 2, 2, rig.worker().Spec()).ok());
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 40}; });
  const auto send = [&rig](uint64_t key, uint32_t handle) {
    rig.worker().Fill(handle, PageOf(key));
    return rig.worker().Send({.type = WireType::kPut,
                              .blocks = {{.digest = DigestNumber(key), .slot = handle}},
                              .flags = kWireFlagDurable,
                              .layout = handle,
                              .region_set = handle});
  };
  const uint64_t first = send(9, kLayout);  // takes the log's only place for a write
  for (int i = 0; i < 6; ++i) rig.Turn();
  const uint64_t better = send(1, 2);
  for (int i = 0; i < 6; ++i) rig.Turn();
  EXPECT_TRUE(FlushNow(rig, {.tenant = "t"}).ok());
  EXPECT_EQ(rig.worker().Answer(better).result, BlockResult::kCancelled);
  EXPECT_EQ(rig.worker().Answer(first).result, BlockResult::kNotDurable) << "it was published";
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  EXPECT_EQ(rig.Lookup(9).result, BlockResult::kMiss);
  rig.ExpectAtRest();
}

TEST(EngineFlushTest, APutThatWasSeenBeforeTheFlushIsNotSaidToHaveFailed) {
  for (const bool everything : {true, false}) {
    Rig rig(Tiered());
    rig.Put(9, PageOf(9), kWireFlagDurable);  // opens the first segment
    rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 30}; });
    rig.worker().Fill(0, PageOf(1));
    const uint64_t put = rig.worker().Send({.type = WireType::kPut,
                                            .blocks = {{.digest = DigestNumber(1)}},
                                            .flags = kWireFlagDurable});
    for (int i = 0; i < 6; ++i) rig.Turn();
    const uint64_t get = rig.worker().Send(
        {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 1}}});
    for (int i = 0; i < 6; ++i) rig.Turn();
    ASSERT_FALSE(rig.worker().Answered(put));
    EXPECT_EQ(rig.worker().Answer(get).result, BlockResult::kOk);
    EXPECT_TRUE(FlushNow(rig, EverythingOrTenant(everything)).ok());
    EXPECT_EQ(rig.worker().Answer(put).result, BlockResult::kNotDurable);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
    const MemDevice::Survives all = [](const MemDevice::Write&, uint64_t) { return true; };
    rig.Restart(&all);
    EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
  }
}

TEST(EngineFlushTest, AReadThatIsUnderWayDoesNotBringAPageBack) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1));
  for (uint64_t key = 100; key < 117; ++key) rig.Put(key, PageOf(key));
  ASSERT_EQ(rig.Lookup(1).tier, Tier::kNvme);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.delay_polls = request.op == IoOp::kRead ? 10u : 0u};
  });
  const uint64_t id = rig.worker().Send(
      {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(1), .slot = 1}}});
  for (int i = 0; i < 4; ++i) rig.Turn();
  EXPECT_TRUE(FlushNow(rig, {.tenant = "t"}).ok());
  for (int i = 0; i < 20; ++i) rig.Turn();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kMiss);
  EXPECT_EQ(rig.engine->stats().index_entries, 0u);
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 0u);
  rig.ExpectAtRest();
}

// What is asked for first takes long to be stable: whoever asks then, and finds the page gone, is
// not told that it stays gone before that is so.
TEST(EngineFlushTest, NoAnswerOvertakesWhatMadeThePageGo) {
  enum class Way { kEverything, kTenant, kDelete };
  const auto ask = [](Rig& rig, Way way, bool* done) -> uint64_t {
    if (way == Way::kDelete) {
      return rig.worker().Send(
          {.type = WireType::kDelete, .blocks = {{.digest = DigestNumber(1)}}});
    }
    rig.engine->Flush(EverythingOrTenant(way == Way::kEverything),
                      [done](const absl::Status& status) {
                        EXPECT_TRUE(status.ok()) << status;
                        *done = true;
                      });
    return 0;
  };
  for (const Way first : {Way::kEverything, Way::kTenant, Way::kDelete}) {
    for (const Way second : {Way::kTenant, Way::kDelete}) {
      Rig rig(Tiered());
      rig.Put(1, PageOf(1), kWireFlagDurable);
      rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{.delay_polls = 20}; });
      bool done[2] = {false, false};
      const uint64_t first_id = ask(rig, first, &done[0]);
      for (int i = 0; i < 4; ++i) rig.Turn();
      const uint64_t second_id = ask(rig, second, &done[1]);
      const auto answered = [&](uint64_t id, bool flushed) {
        return id != 0 ? rig.worker().Answered(id) : flushed;
      };
      for (int i = 0; i < 300 && !answered(second_id, done[1]); ++i) rig.Turn();
      ASSERT_TRUE(answered(second_id, done[1]));
      rig.Turn();  // answers of one moment go out one after another
      EXPECT_TRUE(answered(first_id, done[0]))
          << static_cast<int>(first) << " then " << static_cast<int>(second);
      rig.Settle();
      rig.Restart(&kNothingSurvives);
      EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
    }
  }
}

TEST(EngineFlushTest, AFlushAfterOneThatFailedSaysSo) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5};
  });
  EXPECT_FALSE(FlushNow(rig, {}).ok());
  rig.faults->SetPlan([](const IoRequest&, uint64_t) { return Fault{}; });
  EXPECT_FALSE(FlushNow(rig, {.tenant = "t"}).ok()) << "the first may not outlive a restart";
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kIo) << "no segment is written before the head is";
  rig.clock.Advance(rig.options.log.retry_off_us);
  rig.Settle();
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kOk) << "this one does";
  EXPECT_TRUE(FlushNow(rig, {}).ok());
  EXPECT_TRUE(FlushNow(rig, {.tenant = "t"}).ok());
  EXPECT_EQ(rig.Delete(1).result, BlockResult::kMiss);
}

TEST(EngineFlushTest, TooManyAtOnceAreRefusedAndADeviceErrorIsSaid) {
  Rig rig(Tiered());
  rig.Put(1, PageOf(1), kWireFlagDurable);
  rig.faults->SetPlan([](const IoRequest& request, uint64_t) {
    return Fault{.error = request.op == IoOp::kRead ? 0 : 5, .delay_polls = 5};
  });
  std::vector<absl::StatusCode> codes;
  for (int i = 0; i < 12; ++i) {
    rig.engine->Flush({}, [&codes](const absl::Status& status) { codes.push_back(status.code()); });
  }
  for (int i = 0; i < 50; ++i) rig.Turn();
  rig.Settle();
  EXPECT_EQ(codes.size(), 12u);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), absl::StatusCode::kResourceExhausted), 4);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), absl::StatusCode::kDataLoss), 8);
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss);
}

}  // namespace
}  // namespace crumb::testing
