// What only the loopback transport promises (the shared promises are in tests/conformance/net),
// and the small parts under it: message slots, the bounded ring, range checks. One thread.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/bounded_ring.h"
#include "cachesvc/net/loopback_transport.h"
#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/peer_regions.h"

namespace crumb {
namespace {

void Ignore(void*, Bytes) {}

TEST(BoundedRing, KeepsOrderAndRefusesWhenFull) {
  BoundedRing<int> ring(3);
  int next = 0;
  for (int round = 0; round < 10; ++round) {
    EXPECT_TRUE(ring.Push(next++));
    EXPECT_TRUE(ring.Push(next++));
    EXPECT_TRUE(ring.Push(next++));
    EXPECT_FALSE(ring.Push(99));
    EXPECT_EQ(ring.Pop(), next - 3);
    EXPECT_TRUE(ring.Push(100));
    EXPECT_EQ(ring.Pop(), next - 2);
    EXPECT_EQ(ring.Pop(), next - 1);
    EXPECT_EQ(ring.Pop(), 100);
    EXPECT_TRUE(ring.empty());
  }
}

TEST(MessageSlots, SmallFirstThenLargeThenNone) {
  MessageSlots slots(4);  // 4 small, 8 large
  std::vector<uint32_t> taken;
  for (int i = 0; i < 12; ++i) {
    taken.push_back(slots.Take(100));
    ASSERT_NE(taken.back(), kSlotNone);
    std::memset(slots.data(taken.back()), i,
                i < 4 ? MessageSlots::kSmallBytes : MessageSlots::kLargeBytes);
  }
  EXPECT_EQ(slots.Take(1), kSlotNone);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(slots.data(taken[static_cast<size_t>(i)])[99], i);
  EXPECT_EQ(slots.held(), 12u);
  EXPECT_TRUE(slots.low());
  for (uint32_t slot : taken) slots.Give(slot);
  EXPECT_FALSE(slots.low());
  EXPECT_EQ(slots.Take(MessageSlots::kLargeBytes + 1), kSlotNone);
  EXPECT_NE(slots.Take(MessageSlots::kLargeBytes), kSlotNone);
}

TEST(SegmentsFit, RefusesWhateverEndsOutside) {
  const RegionRange ranges[] = {{1000, 100}, {UINT64_MAX - 50, 50}};
  std::vector<uint8_t> local(64);
  const auto fits = [&](Segment segment) {
    return SegmentsFit(ranges,
                       {.peer = {}, .segments = {&segment, 1}, .local = absl::MakeSpan(local)});
  };
  EXPECT_TRUE(fits({0, 1000, 0, 64}));
  EXPECT_TRUE(fits({0, 1036, 0, 64}));
  EXPECT_TRUE(fits({1, UINT64_MAX - 50, 14, 50}));
  EXPECT_FALSE(fits({0, 1037, 0, 64}));
  EXPECT_FALSE(fits({0, 999, 0, 4}));
  EXPECT_FALSE(fits({0, 1000, 1, 64}));
  EXPECT_FALSE(fits({0, 1000, 0, 0}));
  EXPECT_FALSE(fits({2, 1000, 0, 1}));
  EXPECT_FALSE(fits({0, 1000, UINT64_MAX, 2}));
  EXPECT_FALSE(fits({0, UINT64_MAX, 0, 2}));
  EXPECT_FALSE(fits({1, UINT64_MAX - 1, 0, 50}));
  EXPECT_FALSE(fits({0, 1000, 0, UINT64_MAX}));
  EXPECT_FALSE(SegmentsFit(ranges, {.peer = {}, .segments = {}, .local = absl::MakeSpan(local)}));
}

TEST(Loopback, KillingAndClosingPeersWithoutPollingStaysBounded) {
  auto transport = LoopbackTransport::Create(4);
  for (int i = 0; i < 20000; ++i) {
    const PeerId peer = transport->AddPeer(&Ignore, nullptr);
    if (peer.value == 0) break;
    transport->KillPeer(peer);
    if (i % 2 == 0) transport->ClosePeer(peer);
  }
  EXPECT_EQ(transport->AddPeer(&Ignore, nullptr).value, 0u);
  std::vector<NetEvent> events(64);
  size_t downs = 0;
  for (int i = 0; i < 1000; ++i) downs += transport->Poll(absl::MakeSpan(events));
  EXPECT_EQ(downs, 2048u);
  EXPECT_EQ(transport->stats().peers_closing, 0u);
  EXPECT_NE(transport->AddPeer(&Ignore, nullptr).value, 0u);
}

TEST(Loopback, InjectIsBusyWhenNobodyPolls) {
  auto transport = LoopbackTransport::Create(4);
  const PeerId peer = transport->AddPeer(&Ignore, nullptr);
  BlockResult result = BlockResult::kOk;
  int sent = 0;
  for (; sent < 10000 && result == BlockResult::kOk; ++sent) {
    result = transport->Inject(peer, AsBytes("hello"));
  }
  EXPECT_EQ(result, BlockResult::kBusy);
  EXPECT_LT(sent, 1000);
  EXPECT_FALSE(transport->Arm());
  std::vector<NetEvent> events(16);
  size_t messages = 0;
  while (size_t n = transport->Poll(absl::MakeSpan(events))) messages += n;
  EXPECT_EQ(messages, static_cast<size_t>(sent - 1));
  EXPECT_TRUE(transport->Arm());
  EXPECT_EQ(transport->stats().messages_held, 0u);
}

// A callback may call back: what it queues is done by the next Poll, so Poll always ends.
TEST(Loopback, CallbacksMayCallBack) {
  struct Echo {
    LoopbackTransport* transport = nullptr;
    PeerId peer;
    int calls = 0;
  } echo;
  auto transport = LoopbackTransport::Create(4);
  echo.transport = transport.get();
  echo.peer = transport->AddPeer(
      [](void* arg, Bytes message) {
        auto* self = static_cast<Echo*>(arg);
        ++self->calls;
        for (int i = 0; i < 50; ++i) self->transport->AddPeer(&Ignore, nullptr);
        EXPECT_EQ(self->transport->Send(self->peer, message), BlockResult::kOk);
      },
      &echo);
  ASSERT_EQ(transport->Send(echo.peer, AsBytes("ping")), BlockResult::kOk);
  std::vector<NetEvent> events(4);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(transport->Poll(absl::MakeSpan(events)), 0u);
    EXPECT_EQ(echo.calls, i + 1);
  }
}

}  // namespace
}  // namespace crumb
