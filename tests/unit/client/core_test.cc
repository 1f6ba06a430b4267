// The client's core over a plane and a clock of the test: cancel, abandonment, bounds, the circuit,
// loss and return, and that nothing is allocated once it is warm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <fstream>
#include <sstream>

#include "cachesvc/base/hash.h"
#include "tests/unit/client/allocation_counter.h"
#include "tests/unit/client/fake_plane.h"

namespace crumb::client {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kSlots = 8;

class Core : public ::testing::Test {
 protected:
  Core() : memory_(kSlots * kValue) {
    options_.deadline_ms = 100;
    options_.grace_ms = 50;
    options_.requests_in_flight_max = 4;
    options_.breaker_failures = 3;
    options_.breaker_open_ms = 100;
    options_.auto_reconnect = false;
  }
  void Start() {
    core_ = std::make_unique<ClientCore>(
        options_, "unix:/test",
        ClientCore::Seams{.clock = &clock_,
                          .opener = [this](const LinkPlan&) -> absl::StatusOr<Link> {
                            ++state_.opened;
                            if (state_.refuse_open) return absl::UnavailableError("nobody there");
                            Link link;
                            link.plane = std::make_unique<FakePlane>(&state_);
                            link.name = "fake";
                            link.layouts.push_back(MakeLayout());
                            return link;
                          },
                          .seed = 1});
    ASSERT_TRUE(core_->OpenWaker().ok());
    ASSERT_TRUE(core_->Open().ok());
    auto lent = LentMemory::Make(
        LentMemory::Pages{.base = memory_.data(), .bytes = memory_.size(), .slot_bytes = kValue},
        *MakeLayout().shape);
    ASSERT_TRUE(lent.ok());
    const auto set = core_->session().Lend(1, *lent);
    ASSERT_TRUE(set.ok()) << set.status();
    set_ = *set;
  }
  Status Get(uint32_t slot, Ticket* ticket, const RequestOptions& options = {}) {
    blocks_.resize(1);
    blocks_[0].key = "key";
    blocks_[0].slot = slot;
    return core_->Submit({WireType::kGet, 1, set_, &blocks_, options}, ticket);
  }
  Ticket MustGet(uint32_t slot) {
    Ticket ticket = 0;
    const Status status = Get(slot, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ticket;
  }
  void Answer(Ticket ticket, uint32_t slot, BlockResult result = BlockResult::kOk) {
    const Bytes value(memory_.data() + slot * kValue, kValue);
    PlaneReply reply;
    reply.id = ticket;
    reply.blocks.push_back({.result = result,
                            .tier = crumb::Tier::kDram,
                            .value_bytes = kValue,
                            .checksum = Xxh3(value)});
    state_.replies.push_back(std::move(reply));
  }
  void EndUnheard(Ticket ticket, BlockResult result) {
    PlaneReply reply;
    reply.id = ticket;
    reply.unheard = true;
    reply.blocks.push_back({.result = result});
    state_.replies.push_back(std::move(reply));
  }
  std::vector<Completion> Drain() {
    std::vector<Completion> done;
    core_->Drain(0, &done);
    return done;
  }
  bool Readable() const {
    pollfd poll{.fd = core_->event_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 0) == 1;
  }
  // A clock that stands still waits for no goodbye.
  void TearDown() override {
    state_.lost = true;
    core_.reset();
  }

  TestClock clock_;
  PlaneState state_;
  Options options_;
  std::vector<uint8_t> memory_;
  std::vector<Block> blocks_;
  std::unique_ptr<ClientCore> core_;
  uint32_t set_ = 0;
};

TEST_F(Core, ACancelledRequestCompletesOnceAndItsSlotIsOwnedUntilThen) {
  Start();
  const Ticket ticket = MustGet(1);
  EXPECT_TRUE(core_->Cancel(ticket).ok());
  ASSERT_EQ(state_.cancels.size(), 1u);
  EXPECT_EQ(state_.cancels[0], std::make_pair(uint64_t{ticket}, CancelKind::kAnswer));
  EXPECT_TRUE(Drain().empty());
  EXPECT_TRUE(core_->table().OwnsSlot(set_, 1));
  Answer(ticket, 1, BlockResult::kCancelled);
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kCancelled);
  EXPECT_EQ(done[0].results[0].code, Code::kCancelled);
  EXPECT_FALSE(core_->table().OwnsSlot(set_, 1));
  EXPECT_EQ(core_->Cancel(ticket).code, Code::kMiss);
  Answer(ticket, 1);
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(core_->stats().cancelled, 1u);
}

TEST_F(Core, AnAnswerThatWasFasterThanItsCancelIsTheOutcome) {
  Start();
  const Ticket ticket = MustGet(1);
  EXPECT_TRUE(core_->Cancel(ticket).ok());
  Answer(ticket, 1);
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kOk);
  EXPECT_EQ(done[0].results[0].code, Code::kOk);
}

TEST_F(Core, ARequestThatTimesOutIsAbandonedAndItsLateAnswerIsDropped) {
  Start();
  const Ticket ticket = MustGet(1);
  clock_.Advance(149'000);
  EXPECT_TRUE(Drain().empty());
  clock_.Advance(1'000);
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kTimeout);
  ASSERT_EQ(state_.cancels.size(), 1u);
  EXPECT_EQ(state_.cancels[0].second, CancelKind::kAbandon);
  EXPECT_TRUE(core_->table().OwnsSlot(set_, 1));
  Ticket second = 0;
  EXPECT_EQ(Get(1, &second).code, Code::kBusy);
  EXPECT_EQ(core_->stats().unanswered, 1u);
  Answer(ticket, 1);
  EXPECT_TRUE(Drain().empty());
  EXPECT_FALSE(core_->table().OwnsSlot(set_, 1));
  EXPECT_TRUE(Get(1, &second).ok());
}

TEST_F(Core, AbandonedMemoryThatThePlaneLetsGoOfIsFreeAtOnce) {
  state_.forgets_at_once = true;
  Start();
  MustGet(1);
  clock_.Advance(200'000);
  ASSERT_EQ(Drain().size(), 1u);
  EXPECT_FALSE(core_->table().OwnsSlot(set_, 1));
  Ticket second = 0;
  EXPECT_TRUE(Get(1, &second).ok());
  EXPECT_TRUE(core_->Unlend(set_).code == Code::kBusy);
}

TEST_F(Core, RequestsAndBytesInFlightAreBounded) {
  options_.bytes_in_flight_max = 3 * kValue;
  Start();
  for (uint32_t slot = 0; slot < 3; ++slot) MustGet(slot);
  Ticket ticket = 7;
  Status status = Get(3, &ticket);
  EXPECT_EQ(status.code, Code::kBusy);
  EXPECT_THAT(status.message, HasSubstr("bytes_in_flight_max"));
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(core_->stats().bytes_in_flight, 3 * kValue);
  ASSERT_TRUE(core_->Submit({WireType::kLookup, 1, 0, &blocks_, {}}, &ticket).ok());
  status = core_->Submit({WireType::kLookup, 1, 0, &blocks_, {}}, &ticket);
  EXPECT_THAT(status.message, HasSubstr("requests_in_flight_max"));
  EXPECT_EQ(core_->stats().refused_busy, 2u);
}

TEST_F(Core, ARequestLargerThanTheBoundOfBytesGoesAlone) {
  options_.bytes_in_flight_max = 1;
  Start();
  const Ticket ticket = MustGet(0);
  Ticket second = 0;
  EXPECT_EQ(Get(1, &second).code, Code::kBusy);
  Answer(ticket, 0);
  Drain();
  EXPECT_TRUE(Get(1, &second).ok());
}

TEST_F(Core, TimeoutsInARowOpenTheCircuitAndAProbeClosesIt) {
  Start();
  for (uint32_t slot = 0; slot < 3; ++slot) MustGet(slot);
  clock_.Advance(200'000);
  EXPECT_EQ(Drain().size(), 3u);
  EXPECT_EQ(core_->stats().circuit, Circuit::kOpen);
  Ticket ticket = 0;
  const Status refused = Get(5, &ticket);
  EXPECT_EQ(refused.code, Code::kUnavailable);
  EXPECT_THAT(refused.message, HasSubstr("circuit"));
  EXPECT_EQ(state_.sent.size(), 3u);
  clock_.Advance(100'000);
  ASSERT_TRUE(Get(5, &ticket).ok());
  EXPECT_EQ(core_->stats().circuit, Circuit::kHalfOpen);
  Ticket other = 0;
  EXPECT_EQ(Get(6, &other).code, Code::kBusy);  // four are unanswered
  Answer(ticket, 5);
  EXPECT_EQ(Drain().size(), 1u);
  EXPECT_EQ(core_->stats().circuit, Circuit::kClosed);
  EXPECT_TRUE(Get(6, &other).ok());
  EXPECT_GE(core_->stats().circuit_refused, 1u);
}

TEST_F(Core, AnswersThatRefuseForWantOfADaemonCountAsFailures) {
  Start();
  for (uint32_t i = 0; i < 3; ++i) {
    const Ticket ticket = MustGet(0);
    Answer(ticket, 0, BlockResult::kUnavailable);
    ASSERT_EQ(Drain().size(), 1u);
  }
  EXPECT_EQ(core_->stats().circuit, Circuit::kOpen);
}

// A plane with a clock of its own may give a request up before the client's clock does.
TEST_F(Core, WhatThePlaneGaveUpIsATimeoutAndNoAnswer) {
  Start();
  for (uint32_t i = 0; i < 3; ++i) {
    EndUnheard(MustGet(i), BlockResult::kTimeout);
    const std::vector<Completion> done = Drain();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].code, Code::kTimeout);
    EXPECT_EQ(done[0].results[0].code, Code::kTimeout);
  }
  EXPECT_EQ(core_->stats().timeouts, 3u);
  EXPECT_EQ(core_->stats().circuit, Circuit::kOpen);
}

TEST_F(Core, TheEndOfAnAbandonedRequestIsNoSignOfLifeUnlessTheDaemonSpoke) {
  Start();
  std::vector<Ticket> tickets;
  for (uint32_t slot = 0; slot < 3; ++slot) tickets.push_back(MustGet(slot));
  clock_.Advance(200'000);
  EXPECT_EQ(Drain().size(), 3u);
  for (uint32_t i = 0; i < 2; ++i) EndUnheard(tickets[i], BlockResult::kCancelled);
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(core_->stats().unanswered, 1u);
  Ticket ticket = 0;
  EXPECT_EQ(Get(5, &ticket).code, Code::kUnavailable);  // the pause is not over
  Answer(tickets[2], 2);
  EXPECT_TRUE(Drain().empty());
  EXPECT_TRUE(Get(5, &ticket).ok());  // a probe, at once
}

TEST_F(Core, AProbeThatTheWorkerCancelsNeitherClosesTheCircuitNorShutsItForGood) {
  Start();
  for (uint32_t slot = 0; slot < 3; ++slot) EndUnheard(MustGet(slot), BlockResult::kTimeout);
  EXPECT_EQ(Drain().size(), 3u);
  clock_.Advance(100'000);
  const Ticket probe = MustGet(0);
  ASSERT_TRUE(core_->Cancel(probe).ok());
  EndUnheard(probe, BlockResult::kCancelled);
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].code, Code::kCancelled);
  EXPECT_EQ(core_->stats().circuit, Circuit::kHalfOpen);
  const Ticket second = MustGet(0);
  Ticket third = 0;
  EXPECT_EQ(Get(1, &third).code, Code::kUnavailable);  // one probe at a time
  Answer(second, 0);
  EXPECT_EQ(Drain().size(), 1u);
  EXPECT_EQ(core_->stats().circuit, Circuit::kClosed);
}

TEST_F(Core, AProbeThatTheQueueRefusesDoesNotShutTheCircuitForGood) {
  Start();
  for (uint32_t slot = 0; slot < 3; ++slot) MustGet(slot);
  clock_.Advance(200'000);
  Drain();
  clock_.Advance(100'000);
  state_.submit = BlockResult::kBusy;
  Ticket ticket = 0;
  EXPECT_EQ(Get(5, &ticket).code, Code::kBusy);
  state_.submit = BlockResult::kOk;
  EXPECT_TRUE(Get(5, &ticket).ok());
}

TEST_F(Core, ALostPlaneEndsEverythingAndOpenRestoresIt) {
  Start();
  const Ticket ticket = MustGet(1);
  state_.lost = true;
  Ticket second = 0;
  EXPECT_EQ(Get(2, &second).code, Code::kUnavailable);  // at once, and nothing is closed yet
  EXPECT_TRUE(core_->session().open());
  EXPECT_TRUE(Readable());
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].ticket, ticket);
  EXPECT_EQ(done[0].code, Code::kUnavailable);
  EXPECT_FALSE(core_->session().open());
  EXPECT_FALSE(core_->table().OwnsSlot(set_, 1));
  state_.refuse_open = true;
  EXPECT_EQ(core_->Open().code, Code::kUnavailable);
  const int attempts = state_.opened;
  EXPECT_EQ(core_->Open().code, Code::kUnavailable);  // backs off
  EXPECT_EQ(state_.opened, attempts);
  state_.lost = state_.refuse_open = false;
  clock_.Advance(60'000);
  EXPECT_TRUE(core_->Open().ok());
  EXPECT_EQ(core_->stats().reconnects, 1u);
  EXPECT_EQ(core_->stats().losses, 1u);
  MustGet(1);
}

TEST_F(Core, ItConnectsAgainByItselfWithoutBlockingAnybody) {
  options_.auto_reconnect = true;
  Start();
  state_.lost = true;
  Drain();
  ASSERT_FALSE(core_->session().open());
  state_.lost = false;
  Ticket ticket = 0;
  EXPECT_EQ(Get(2, &ticket).code, Code::kUnavailable);  // starts the helper, or sees it at work
  std::vector<Completion> done;
  // The helper's word wakes a worker that sleeps on the fd.
  for (int i = 0; i < 1000 && !core_->session().open(); ++i) {
    pollfd poll{.fd = core_->event_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&poll, 1, 10'000), 1);
    core_->Drain(0, &done);
  }
  ASSERT_TRUE(core_->session().open());
  EXPECT_EQ(core_->stats().reconnects, 1u);
  EXPECT_TRUE(Get(2, &ticket).ok());
}

TEST_F(Core, HostileRepliesCompleteAsCorruptOrNotAtAll) {
  Start();
  const Ticket ticket = MustGet(1);
  PlaneReply wild;
  wild.id = ticket + 1000;
  wild.blocks.resize(3);
  state_.replies.push_back(wild);
  EXPECT_TRUE(Drain().empty());
  wild.id = ticket;
  state_.replies.push_back(wild);  // three blocks for one
  const std::vector<Completion> done = Drain();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].results[0].code, Code::kCorrupt);
}

// WHY: loaded, it hooks memory calls and crash signals of the engine that links this library.
TEST(UcxIsLoadedOnDemand, SoNotInAProcessThatTakesAnotherPlane) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("libgrpc"));
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("libucp")));
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("libucm")));
}

TEST_F(Core, NothingIsAllocatedOnceItIsWarm) {
  Start();
  std::vector<Completion> done;
  done.reserve(8);
  state_.sent.reserve(8);
  state_.replies.reserve(8);
  uint64_t before = 0;
  for (int round = 0; round < 200; ++round) {
    if (round == 100) before = crumb::testing::Allocations();
    const Ticket ticket = MustGet(1);
    state_.sent.clear();
    const uint64_t so_far = crumb::testing::Allocations();
    Answer(ticket, 1);
    before += crumb::testing::Allocations() - so_far;  // the test's own
    core_->Drain(0, &done);
    ASSERT_EQ(done.size(), 1u);
    core_->Recycle(&done);
  }
  EXPECT_EQ(crumb::testing::Allocations() - before, 0u);
}

}  // namespace
}  // namespace crumb::client
