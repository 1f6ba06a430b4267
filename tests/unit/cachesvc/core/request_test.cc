// Requests, peers and sessions: what is refused and how, limits, deadlines, waiting, cancelling,
// and that nobody's mistake or death hurts anybody else.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

RequestSpec PutOf(uint64_t key, uint32_t slot = 0) {
  return {.type = WireType::kPut, .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
}
RequestSpec GetOf(uint64_t key, uint32_t slot = 1) {
  return {.type = WireType::kGet, .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
}

TEST(EngineRequestTest, OneBadBlockDoesNotHurtTheOthersOfItsRequest) {
  Rig rig;
  RequestSpec spec{.type = WireType::kPut};
  for (uint64_t key = 0; key < 6; ++key) {
    rig.worker().Fill(static_cast<uint32_t>(key), PageOf(key));
    spec.blocks.push_back({.digest = DigestNumber(key), .slot = static_cast<uint32_t>(key)});
  }
  spec.blocks[1].digest = Digest{};
  spec.blocks[2].slot = 64;
  spec.blocks[3].part = 1;
  spec.blocks[4].token_count = kTokens + 1;
  const uint64_t id = rig.worker().Send(spec);
  rig.Settle();
  const std::vector<WireBlockReply>& replies = rig.worker().replies.at(id).blocks;
  for (size_t i = 0; i < 6; ++i) {
    const bool good = i == 0 || i == 5;
    EXPECT_EQ(replies[i].result, good ? BlockResult::kOk : BlockResult::kInvalid) << i;
    EXPECT_EQ(rig.Lookup(i).result, good ? BlockResult::kOk : BlockResult::kMiss) << i;
  }
  rig.ExpectAtRest();
}

TEST(EngineRequestTest, WrongNamesInTheHeaderAreRefusedForEveryBlock) {
  Rig rig;
  ASSERT_TRUE(rig.engine->BindLayout(7, rig.Bind(CodecKind::kRaw, "other tenant")).ok());
  std::vector<RequestSpec> specs(4, PutOf(1));
  specs[0].layout = 99;
  specs[1].region_set = 99;
  specs[2].session = 99;
  specs[3].layout = 7;
  for (const RequestSpec& spec : specs) EXPECT_EQ(rig.Ask(spec).result, BlockResult::kInvalid);
  EXPECT_EQ(rig.Ask(PutOf(1)).result, BlockResult::kOk) << "the peer itself is not harmed";
  BlockSpec late{.digest = DigestNumber(2), .token_start = kTokenStartUnknown - 2};
  EXPECT_EQ(rig.Ask({.type = WireType::kPut, .blocks = {late}}).result, BlockResult::kInvalid);
}

TEST(EngineRequestTest, TenantsSeeOnlyTheirOwnPages) {
  Rig rig;
  ASSERT_TRUE(rig.engine->BindLayout(7, rig.Bind(CodecKind::kCrumbInt2, "b")).ok());
  rig.AddWorker({.session = 2, .tenant = "b", .layout = 7});
  rig.Put(1, PageOf(1));
  RequestSpec get = GetOf(1);
  get.layout = 7;
  EXPECT_EQ(rig.Ask(get, 1).result, BlockResult::kMiss);
  RequestSpec put = PutOf(1);
  put.layout = 7;
  rig.worker(1).Fill(0, PageOf(2));
  EXPECT_EQ(rig.Ask(put, 1).result, BlockResult::kOk);
  EXPECT_EQ(rig.engine->stats().index_entries, 2u);
}

TEST(EngineRequestTest, AMalformedMessageClosesItsPeerAndNobodyElse) {
  Rig rig;
  rig.AddWorker({.session = 2});
  std::vector<uint8_t> message = rig.worker(1).Message(PutOf(1));
  message[20] ^= 1;
  rig.worker(1).SendBytes(message);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().bad_messages, 1u);
  EXPECT_EQ(rig.engine->PeersOf({2}), 0u);
  EXPECT_EQ(rig.Put(1, PageOf(1)).result, BlockResult::kOk);
}

// Every cut and every field replaced by values that break lengths and ranges.
TEST(EngineRequestTest, NoMessageCanHurtTheDaemon) {
  Rig rig;
  const std::vector<uint8_t> good = rig.worker().Message(PutOf(1));
  uint64_t session = 100;
  const auto attack = [&rig, &session](std::vector<uint8_t> bytes, bool seal) {
    Worker& victim = rig.AddWorker({.session = ++session, .slots = 1});
    // Its session id, so that the message is looked at.
    if (bytes.size() >= sizeof(WireHeader) && seal) {
      std::memcpy(bytes.data() + offsetof(WireHeader, session_id), &session, sizeof(session));
      FinishWireMessage(absl::MakeSpan(bytes));
    }
    if (!bytes.empty()) victim.SendBytes(bytes);
    rig.Settle();
    rig.engine->CloseSession({session});
  };
  for (size_t size = 1; size < good.size(); ++size) {
    attack({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}, false);
  }
  for (size_t at = 0; at + 8 <= good.size(); at += 4) {
    for (const uint64_t value : {0ull, 1ull, 1ull << 31, 0xffffffffull, 1ull << 63, ~0ull}) {
      std::vector<uint8_t> bytes = good;
      std::memcpy(bytes.data() + at, &value, sizeof(value));
      attack(bytes, true);
    }
  }
  EXPECT_GT(rig.engine->stats().bad_messages, 0u);
  EXPECT_EQ(rig.Put(77, PageOf(1)).result, BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EngineRequestTest, ARequestIdThatIsInUseClosesThePeer) {
  Rig rig;
  rig.wire->hold = true;
  RequestSpec spec = PutOf(1);
  spec.request_id = 5;
  rig.worker().Send(spec);
  rig.Settle();
  rig.worker().Send(spec);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({1}), 0u);
  rig.wire->hold = false;
  rig.Settle();
  rig.ExpectAtRest();
}

TEST(EngineRequestTest, TooManyRequestsAreRefusedAtOnceAndLaterOnesServed) {
  RigOptions options;
  options.limits.requests_per_peer_max = 2;
  Rig rig(options);
  rig.wire->hold = true;
  std::vector<uint64_t> ids;
  for (uint64_t key = 0; key < 3; ++key) ids.push_back(rig.worker().Send(PutOf(key)));
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(ids[2]).result, BlockResult::kBusy);
  EXPECT_FALSE(rig.worker().Answered(ids[0]));
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(ids[0]).result, BlockResult::kOk);
  EXPECT_EQ(rig.Put(3, PageOf(3)).result, BlockResult::kOk);
}

TEST(EngineRequestTest, MoreBlocksThanTheEngineHoldsAreBusy) {
  RigOptions options;
  options.limits.blocks_in_flight_max = 8;
  Rig rig(options);
  RequestSpec spec = PutOf(1);
  for (uint64_t key = 2; key <= 9; ++key) spec.blocks.push_back({.digest = DigestNumber(key)});
  const uint64_t id = rig.worker().Send(spec);
  rig.Settle();
  for (const WireBlockReply& reply : rig.worker().replies.at(id).blocks) {
    EXPECT_EQ(reply.result, BlockResult::kBusy);
  }
  rig.ExpectAtRest();
}

TEST(EngineRequestTest, AStalledPeerLeavesRoomForTheOthers) {
  RigOptions options;
  options.staging_bytes = 128 << 10;  // 8 pages in, 8 pages out
  options.limits.transfers_max = 16;
  Rig rig(options);
  rig.AddWorker({.session = 2});
  rig.wire->hold = true;
  for (uint64_t key = 0; key < 60; ++key) rig.worker(0).Send(PutOf(key));
  rig.Settle();
  const size_t stalled = rig.wire->held();
  EXPECT_GT(stalled, 2u);
  EXPECT_LT(stalled, 8u);
  const uint64_t id = rig.worker(1).Send(PutOf(100));
  rig.Settle();
  EXPECT_EQ(rig.wire->held(), stalled + 1) << "the other worker's transfer has not begun";
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker(1).Answer(id).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker(0).replies.size(), 60u);
  rig.ExpectAtRest();
}

TEST(EngineDeadlineTest, AnAnswerComesEarlyIfNoTransferIsUnderWay) {
  Rig rig;
  rig.queue.steps = 0;  // the encoder hangs
  RequestSpec spec = PutOf(1);
  spec.deadline_us = 1000;
  const uint64_t id = rig.worker().Send(spec);
  rig.Settle();
  EXPECT_FALSE(rig.worker().Answered(id));
  rig.clock.Advance(1000);
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kTimeout);
  rig.queue.steps = 64;
  rig.Settle();
  EXPECT_EQ(rig.Lookup(1).result, BlockResult::kMiss) << "a put that timed out left a trace";
  EXPECT_EQ(rig.engine->stats().pool_used_bytes, 0u);
  EXPECT_EQ(rig.engine->stats().deadline_exceeded, 1u);
  rig.ExpectAtRest();
}

TEST(EngineDeadlineTest, AnAnswerComesAfterTheTransferThatUsesTheWorkersMemory) {
  Rig rig;
  rig.Put(1, PageOf(1));
  rig.wire->hold = true;
  RequestSpec spec = GetOf(1);
  spec.deadline_us = 1000;
  const uint64_t id = rig.worker().Send(spec);
  rig.Settle();
  rig.clock.Advance(5000);
  rig.Settle();
  EXPECT_FALSE(rig.worker().Answered(id)) << "the slot is still being written to";
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kTimeout);
  rig.ExpectAtRest();
}

// A stopped worker must not keep pages and staging for ever: past the grace it is closed, and only
// when its transfers have ended is their memory used again.
TEST(EngineDeadlineTest, APeerThatStallsPastTheGraceIsClosed) {
  RigOptions options;
  options.limits.transfer_grace_us = 10'000;
  Rig rig(options);
  rig.AddWorker({.session = 2});
  rig.Put(1, PageOf(1));
  rig.wire->hold = true;
  for (RequestSpec spec : {GetOf(1), PutOf(2)}) {
    spec.deadline_us = 1000;
    rig.worker(1).Send(spec);
  }
  rig.Settle();
  rig.clock.Advance(1000);
  rig.Settle();
  rig.clock.Advance(9'999);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({2}), 1u);
  EXPECT_EQ(rig.wire->held(), 2u);
  rig.clock.Advance(1);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({2}), 0u);
  EXPECT_EQ(rig.engine->PeersOf({1}), 1u);
  EXPECT_TRUE(rig.worker(1).replies.empty());
  rig.wire->hold = false;
  rig.Settle();
  rig.ExpectAtRest();
  EXPECT_EQ(rig.Put(2, PageOf(2)).result, BlockResult::kOk);
}

// Nor may one that does not read keep the places of requests.
TEST(EngineDeadlineTest, APeerThatTakesNoReplyIsClosedPastTheGrace) {
  RigOptions options;
  options.limits.transfer_grace_us = 10'000;
  Rig rig(options);
  rig.AddWorker({.session = 2});
  rig.wire->deaf = rig.worker(1).peer;
  for (uint64_t key = 0; key < 8; ++key) rig.worker(1).Send(GetOf(key));
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().in_flight[static_cast<size_t>(EngineOp::kGet)], 8u);
  rig.clock.Advance(9'999);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({2}), 1u);
  rig.clock.Advance(1);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({2}), 0u);
  EXPECT_EQ(rig.engine->PeersOf({1}), 1u);
  EXPECT_EQ(rig.engine->stats().in_flight[static_cast<size_t>(EngineOp::kGet)], 0u);
  rig.ExpectAtRest();
}

// What is late for another reason is not the peer's fault.
TEST(EngineDeadlineTest, APeerWhoseTransfersEndedIsNotClosed) {
  RigOptions options;
  options.limits.transfer_grace_us = 10'000;
  Rig rig(options);
  rig.Put(1, PageOf(1));
  rig.wire->hold = true;
  RequestSpec spec = GetOf(1);
  spec.deadline_us = 1000;
  const uint64_t id = rig.worker().Send(spec);
  rig.Settle();
  rig.clock.Advance(5'000);
  rig.Settle();
  rig.wire->hold = false;
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kTimeout);
  rig.clock.Advance(1'000'000);
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({1}), 1u);
  EXPECT_EQ(rig.Put(3, PageOf(3)).result, BlockResult::kOk);
  rig.ExpectAtRest();
}

TEST(EngineDeadlineTest, ARequestWithoutADeadlineGetsTheDefaultOne) {
  RigOptions options;
  options.limits.default_deadline_us = 2000;
  Rig rig(options);
  rig.queue.steps = 0;
  const uint64_t id = rig.worker().Send(PutOf(1));
  rig.Settle();
  EXPECT_LE(rig.engine->next_timer_us(), rig.clock.now_us() + 2000);
  rig.clock.Advance(2000);
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kTimeout);
}

TEST(EngineWaitTest, AGetThatWaitsIsServedWhenThePutCommits) {
  Rig rig;
  rig.AddWorker({.session = 2});
  RequestSpec get = GetOf(1);
  get.flags = kWireFlagWait;
  const uint64_t id = rig.worker(1).Send(get);
  rig.Settle();
  EXPECT_FALSE(rig.worker(1).Answered(id));
  EXPECT_EQ(rig.engine->stats().waiters, 1u);
  rig.Put(2, PageOf(2));
  EXPECT_FALSE(rig.worker(1).Answered(id)) << "another key's put woke it";
  rig.Put(1, PageOf(1));
  EXPECT_EQ(rig.worker(1).Answer(id).result, BlockResult::kOk);
  EXPECT_EQ(rig.worker(1).Read(1), AfterLoss(PageOf(1), 4));
  rig.ExpectAtRest();
}

TEST(EngineWaitTest, WaitingIsBoundedInTimeAndNumber) {
  RigOptions options;
  options.limits.waiters_max = 2;
  Rig rig(options);
  RequestSpec get = GetOf(1);
  get.flags = kWireFlagWait;
  get.deadline_us = 1000;
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < 3; ++i) ids.push_back(rig.worker().Send(get));
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(ids[2]).result, BlockResult::kBusy);
  rig.clock.Advance(1000);
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(ids[0]).result, BlockResult::kTimeout);
  EXPECT_EQ(rig.worker().Answer(ids[1]).result, BlockResult::kTimeout);
  rig.ExpectAtRest();
}

TEST(EngineCancelTest, ACancelEndsItsRequestAndNoOther) {
  Rig rig;
  RequestSpec get = GetOf(1);
  get.flags = kWireFlagWait;
  const uint64_t first = rig.worker().Send(get);
  const uint64_t second = rig.worker().Send(get);
  rig.Settle();
  rig.worker().Send({.type = WireType::kCancel, .request_id = first});
  rig.worker().Send({.type = WireType::kCancel, .request_id = 12345});
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(first).result, BlockResult::kCancelled);
  EXPECT_FALSE(rig.worker().Answered(second));
  EXPECT_EQ(rig.engine->stats().cancelled, 1u);
}

TEST(EnginePeerTest, HelloIsAnsweredAndGoodbyeEndsThePeer) {
  Rig rig;
  const uint64_t hello = rig.worker().Send({.type = WireType::kHello});
  rig.Settle();
  EXPECT_TRUE(rig.worker().replies.at(hello).blocks.empty());
  rig.worker().Send({.type = WireType::kGoodbye});
  rig.Settle();
  EXPECT_EQ(rig.engine->PeersOf({1}), 0u);
  EXPECT_EQ(rig.engine->stats().peers, 0u);
  EXPECT_EQ(rig.engine->stats().sessions, 1u);
}

TEST(EnginePeerTest, ADeadPeerLeavesNothingBehind) {
  Rig rig;
  rig.AddWorker({.session = 2});
  rig.Put(1, PageOf(1));
  rig.wire->hold = true;
  Worker& dying = rig.worker(1);
  for (uint64_t key = 10; key < 20; ++key) dying.Send(PutOf(key));
  for (int i = 0; i < 5; ++i) dying.Send(GetOf(1));
  RequestSpec wait = GetOf(99);
  wait.flags = kWireFlagWait;
  dying.Send(wait);
  rig.Settle();
  rig.transport->KillPeer(dying.peer);
  rig.Settle();
  rig.wire->hold = false;
  rig.Settle();
  rig.ExpectAtRest();
  EXPECT_EQ(rig.engine->stats().peers, 1u);
  EXPECT_EQ(rig.engine->stats().pool_pages, 1u);
  EXPECT_EQ(rig.engine->stats().abandoned_puts, 10u);
  EXPECT_EQ(dying.replies.size(), 0u);
  EXPECT_EQ(rig.Put(10, PageOf(10)).result, BlockResult::kOk) << "the key of an abandoned put";
}

TEST(EnginePeerTest, ClosingASessionFreesPinsWaitersAndRequests) {
  Rig rig;
  rig.AddWorker({.session = 2});
  rig.Put(1, PageOf(1));
  EXPECT_EQ(rig.engine->Pin({.layout_handle = kLayout,
                             .session = {2},
                             .digests = {DigestNumber(1)},
                             .ttl_us = 1'000'000})[0],
            BlockResult::kOk);
  RequestSpec wait = GetOf(99);
  wait.flags = kWireFlagWait;
  rig.worker(1).Send(wait);
  rig.Settle();
  EXPECT_EQ(rig.engine->stats().pins, 1u);
  EXPECT_EQ(rig.engine->stats().pool_pinned, 1u);
  rig.engine->CloseSession({2});
  rig.Settle();
  rig.ExpectAtRest();
  EXPECT_EQ(rig.engine->stats().pins, 0u);
  EXPECT_EQ(rig.engine->stats().sessions, 1u);
  rig.engine->CloseSession({2});  // once more: nothing
  EXPECT_TRUE(rig.engine->OpenSession({2}, "t").ok());
}

TEST(EnginePeerTest, ControlVerbsSayWhatIsWrong) {
  RigOptions options;
  options.limits.sessions_max = 2;
  options.limits.region_sets_per_session_max = 1;
  options.limits.layouts_max = 1;
  Rig rig(options);
  Engine& engine = *rig.engine;
  const auto code = [](const absl::Status& status) { return status.code(); };
  EXPECT_EQ(code(engine.OpenSession({0}, "t")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(engine.OpenSession({1}, "t")), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(engine.OpenSession({2}, "t").ok());
  EXPECT_EQ(code(engine.OpenSession({3}, "t")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(engine.AttachPeer({9}, 0, {1})), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(engine.AttachPeer({1}, 5, {1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(engine.AttachPeer({1}, 0, rig.worker().peer)), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(engine.RegisterRegions({9}, 1, kLayout, {})), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(engine.RegisterRegions({1}, 1, 99, {})), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(engine.RegisterRegions({1}, 1, kLayout, {})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(engine.RegisterRegions({1}, 2, kLayout, rig.worker().Spec())),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine.RegisterRegions({1}, kRegionSet, kLayout, rig.worker().Spec()).ok());
  EXPECT_EQ(code(engine.BindLayout(2, rig.Bind(CodecKind::kRaw))),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(engine.BindLayout(kLayout, rig.Bind(CodecKind::kRaw, "other"))),
            absl::StatusCode::kInvalidArgument);
  LayoutBinding no_raw = rig.Bind(CodecKind::kCrumbInt2);
  no_raw.ladder[0].pop_back();
  EXPECT_EQ(code(engine.BindLayout(kLayout, no_raw)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(engine.BindLayout(kLayout, {})), absl::StatusCode::kInvalidArgument);
}

// A remote worker's addresses must never be handed to a transport that would read them here.
TEST(EnginePeerTest, APeerOfAnotherTransportCannotJoinASession) {
  Rig rig;
  const auto other = LoopbackTransport::Create(4);
  const uint32_t transport = rig.engine->AddTransport(other.get());
  const PeerId peer = other->AddPeer([](void*, Bytes) {}, nullptr);
  EXPECT_EQ(rig.engine->AttachPeer({1}, transport, peer).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(EnginePeerTest, ALayoutWhosePagesDoNotFitThePoolIsRefused) {
  Rig rig({.main_bytes = 1 << 20, .staging_bytes = 64 << 10});
  Identity identity = SmallIdentity();
  identity.groups[0].kv_heads = 8;
  identity.revision = "large";
  auto layout = Layout::Make(identity);
  ASSERT_TRUE(layout.ok());
  rig.layout = std::make_shared<const Layout>(std::move(layout).value());
  const absl::Status status = rig.engine->BindLayout(9, rig.Bind(CodecKind::kCrumbInt2));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("pool.dram_bytes"), std::string::npos) << status;
}

TEST(EngineDrainTest, ADrainedEngineRefusesAndSaysWhenItIsDone) {
  Rig rig;
  rig.queue.steps = 0;
  const uint64_t running = rig.worker().Send(PutOf(1));
  rig.Settle();
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000, [&drained] { drained = true; });
  const uint64_t refused = rig.worker().Send(PutOf(2));
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(refused).result, BlockResult::kUnavailable);
  EXPECT_FALSE(drained);
  rig.queue.steps = 64;
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(running).result, BlockResult::kOk);
  EXPECT_TRUE(drained);
}

TEST(EngineDrainTest, WhoWaitsForAPutIsToldAtOnce) {
  Rig rig;
  RequestSpec get = GetOf(1);
  get.flags = kWireFlagWait;
  const uint64_t id = rig.worker().Send(get);
  rig.Settle();
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1'000'000'000, [&drained] { drained = true; });
  rig.Settle();
  EXPECT_EQ(rig.worker().Answer(id).result, BlockResult::kUnavailable);
  EXPECT_TRUE(drained);
}

TEST(EngineDrainTest, TheDeadlineEndsADrainThatHangs) {
  Rig rig;
  rig.wire->hold = true;
  rig.worker().Send(PutOf(1));
  rig.Settle();
  bool drained = false;
  rig.engine->Drain(rig.clock.now_us() + 1000, [&drained] { drained = true; });
  rig.Settle();
  EXPECT_FALSE(drained);
  rig.clock.Advance(1000);
  rig.Settle();
  EXPECT_TRUE(drained);
}

}  // namespace
}  // namespace crumb::testing
