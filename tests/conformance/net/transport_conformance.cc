// The promises of net/transport.h, held against every implementation in one process: messages in
// order, exact bytes, one completion per transfer, limits, and what closing and death do. One
// thread; no waiting but by polling a bounded number of times.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "tests/conformance/net/transport_link.h"
#include "tests/conformance/net/whole_region.h"

namespace crumb {
namespace {

constexpr uint32_t kSet = 7;

RegionSet WholeMemory(const Region& region) {
  auto set = WholeRegion(region);
  EXPECT_TRUE(set.ok()) << set.status();
  return *std::move(set);
}

void FillRandom(Rng* rng, MutableBytes bytes) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = rng->Next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}

std::vector<uint8_t> Copy(MutableBytes bytes) { return {bytes.begin(), bytes.end()}; }

// Disjoint segments in random order, scattered on both sides.
std::vector<Segment> Scatter(Rng* rng, const Region& region, uint64_t local_bytes, size_t count) {
  const uint64_t remote_step = region.bytes / count, local_step = local_bytes / count;
  std::vector<Segment> segments;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t most = std::min(remote_step, local_step);
    const uint64_t bytes = 1 + rng->Below(most);
    segments.push_back(
        {.region = 0,
         .address = region.address + i * remote_step + rng->Below(remote_step - bytes + 1),
         .local_offset = i * local_step + rng->Below(local_step - bytes + 1),
         .bytes = bytes});
  }
  for (size_t i = count; i > 1; --i) std::swap(segments[i - 1], segments[rng->Below(i)]);
  return segments;
}

class TransportConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(const LinkLimits& limits = {}) { link_ = MakeLink(GetParam(), limits); }
  // One-sided access without hardware for it: UCX emulates it, and its emulation ends the process
  // whose memory is accessed when the other side goes away at a bad moment.
  bool emulated() const { return GetParam().rfind("one_sided:", 0) == 0; }

  // One round of everybody; events are sorted into the fields below.
  void Step() {
    link_->StepClients();
    NetEvent events[64];
    const size_t count = link_->server().Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      const NetEvent& event = events[i];
      EXPECT_FALSE(downs_.contains(event.peer.value)) << "an event after kPeerDown";
      switch (event.kind) {
        case NetEventKind::kMessage:
          messages_[event.peer.value].emplace_back(
              reinterpret_cast<const char*>(event.message.data()), event.message.size());
          break;
        case NetEventKind::kTransferDone:
          EXPECT_TRUE(done_.emplace(event.token, event.result).second) << "completed twice";
          break;
        case NetEventKind::kPeerDown:
          ++downs_[event.peer.value];
          break;
      }
    }
  }
  template <typename Predicate>
  [[nodiscard]] bool Pump(Predicate until) {
    for (int i = 0; i < 2'000'000; ++i) {
      if (until()) return true;
      Step();
    }
    return until();
  }
  void Settle() {
    for (int i = 0; i < 100; ++i) Step();
  }
  size_t Connect(size_t memory_bytes) {
    const size_t client = link_->AddClient(memory_bytes);
    FillRandom(&rng_, link_->memory(client));
    const absl::Status status = link_->server().RegisterRegions(link_->peer(client), kSet,
                                                                WholeMemory(link_->region(client)));
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }
  // A transfer of the whole memory of a client, from or into `local`.
  Transfer Whole(size_t client, std::vector<uint8_t>* local, uint64_t token) {
    segment_ = {.region = 0,
                .address = link_->region(client).address,
                .local_offset = 0,
                .bytes = local->size()};
    return {.peer = link_->peer(client),
            .region_set = kSet,
            .segments = {&segment_, 1},
            .local = absl::MakeSpan(*local),
            .token = token};
  }
  // The client can still be served in full.
  void ExpectServed(size_t client) {
    std::vector<uint8_t> local(link_->memory(client).size());
    const uint64_t token = next_token_++;
    ASSERT_EQ(link_->server().Pull(Whole(client, &local, token)), BlockResult::kOk);
    ASSERT_TRUE(Pump([&] { return done_.contains(token); }));
    ASSERT_EQ(done_[token], BlockResult::kOk);
    ASSERT_EQ(local, Copy(link_->memory(client)));
  }

  std::unique_ptr<TransportLink> link_;
  Rng rng_{42};
  Segment segment_;
  uint64_t next_token_ = 1'000'000;
  std::map<uint64_t, std::vector<std::string>> messages_;  // by peer
  std::map<uint64_t, BlockResult> done_;                   // by token
  std::map<uint64_t, int> downs_;                          // by peer
};

TEST_P(TransportConformance, MessagesComeWholeAndInOrderBothWays) {
  Start();
  const size_t clients[] = {Connect(64), Connect(64)};
  std::vector<std::string> sent[2];
  for (auto& list : sent) {
    for (int i = 0; i < 120; ++i) {
      std::string text(i % 10 == 0 ? 1 + rng_.Below(kWireMessageBytesMax) : 1 + rng_.Below(300), 0);
      for (char& c : text) c = static_cast<char>(rng_.Next());
      list.push_back(std::move(text));
    }
    list.push_back(std::string(kWireMessageBytesMax, 'x'));
  }
  size_t up[2] = {}, down[2] = {};
  const auto feed = [&] {
    for (size_t c = 0; c < 2; ++c) {
      while (up[c] < sent[c].size() &&
             link_->ClientSend(clients[c], AsBytes(sent[c][up[c]])) == BlockResult::kOk) {
        ++up[c];
      }
      while (down[c] < sent[c].size() &&
             link_->server().Send(link_->peer(clients[c]), AsBytes(sent[c][down[c]])) ==
                 BlockResult::kOk) {
        ++down[c];
      }
    }
  };
  ASSERT_TRUE(Pump([&] {
    feed();
    bool all = true;
    for (size_t c = 0; c < 2; ++c) {
      all = all && messages_[link_->peer(clients[c]).value].size() == sent[c].size() &&
            link_->received(clients[c]).size() == sent[c].size();
    }
    return all;
  }));
  for (size_t c = 0; c < 2; ++c) {
    EXPECT_EQ(messages_[link_->peer(clients[c]).value], sent[c]);
    EXPECT_EQ(link_->received(clients[c]), sent[c]);
  }
  Settle();
  EXPECT_EQ(link_->stats().messages_held, 0u);
}

TEST_P(TransportConformance, MessagesOfAWrongSizeOrForNobodyAreRefused) {
  Start();
  const size_t client = Connect(64);
  const std::string big(kWireMessageBytesMax + 1, 'x');
  EXPECT_EQ(link_->server().Send(link_->peer(client), {}), BlockResult::kInvalid);
  EXPECT_EQ(link_->server().Send(link_->peer(client), AsBytes(big)), BlockResult::kInvalid);
  EXPECT_EQ(link_->ClientSend(client, {}), BlockResult::kInvalid);
  EXPECT_EQ(link_->server().Send(PeerId{}, AsBytes("x")), BlockResult::kUnavailable);
  EXPECT_EQ(link_->server().Send(PeerId{link_->peer(client).value + (1 << 16)}, AsBytes("x")),
            BlockResult::kUnavailable);
  EXPECT_EQ(link_->server().Send(PeerId{UINT64_MAX}, AsBytes("x")), BlockResult::kUnavailable);
  ExpectServed(client);
}

TEST_P(TransportConformance, TransfersAreExactAndCompleteOnce) {
  Start();
  constexpr size_t kBytes = 300'000;
  const size_t client = Connect(kBytes);
  for (int round = 0; round < 30; ++round) {
    std::vector<uint8_t> local(kBytes + 1000);
    FillRandom(&rng_, absl::MakeSpan(local));
    const auto segments = Scatter(&rng_, link_->region(client), local.size(),
                                  1 + rng_.Below(round % 3 == 0 ? 2000 : 20));
    const bool push = round % 2 == 0;
    const MutableBytes memory = link_->memory(client);
    std::vector<uint8_t> expected = push ? Copy(memory) : local;
    for (const Segment& s : segments) {
      const uint64_t at = s.address - link_->region(client).address;
      if (push) {
        std::memcpy(&expected[at], &local[s.local_offset], s.bytes);
      } else {
        std::memcpy(&expected[s.local_offset], &memory[at], s.bytes);
      }
    }
    const uint64_t token = next_token_++;
    const Transfer transfer = {.peer = link_->peer(client),
                               .region_set = kSet,
                               .segments = segments,
                               .local = absl::MakeSpan(local),
                               .token = token};
    ASSERT_EQ(push ? link_->server().Push(transfer) : link_->server().Pull(transfer),
              BlockResult::kOk);
    ASSERT_TRUE(Pump([&] { return done_.contains(token); }));
    ASSERT_EQ(done_[token], BlockResult::kOk);
    ASSERT_EQ(push ? Copy(memory) : local, expected) << "round " << round;
  }
  EXPECT_EQ(link_->stats().transfers_pending, 0u);
}

// kOk of a push means: the client sees it now, before it makes any progress of its own.
TEST_P(TransportConformance, APushIsVisibleWhenItCompletes) {
  Start();
  constexpr size_t kBytes = 1 << 20;
  const size_t client = Connect(kBytes);
  for (int round = 0; round < 8; ++round) {
    std::vector<uint8_t> local(kBytes);
    FillRandom(&rng_, absl::MakeSpan(local));
    const uint64_t token = next_token_++;
    ASSERT_EQ(link_->server().Push(Whole(client, &local, token)), BlockResult::kOk);
    while (!done_.contains(token)) Step();
    ASSERT_EQ(Copy(link_->memory(client)), local);
  }
}

TEST_P(TransportConformance, ManyTransfersAtOnceAndBusyBeyondTheLimit) {
  Start({.transfers_max = 64, .transfers_per_peer_max = 64});
  constexpr size_t kPage = 16 * 1024, kPages = 64;
  const size_t client = Connect(kPage * kPages);
  std::vector<std::vector<uint8_t>> local(kPages, std::vector<uint8_t>(kPage));
  std::vector<Segment> segments(kPages);
  for (int round = 0; round < 6; ++round) {
    done_.clear();
    for (size_t i = 0; i < kPages; ++i) {
      segments[i] = {.region = 0,
                     .address = link_->region(client).address + i * kPage,
                     .local_offset = 0,
                     .bytes = kPage};
      const Transfer transfer = {.peer = link_->peer(client),
                                 .region_set = kSet,
                                 .segments = {&segments[i], 1},
                                 .local = absl::MakeSpan(local[i]),
                                 .token = i};
      ASSERT_EQ(round % 2 == 0 ? link_->server().Pull(transfer) : link_->server().Push(transfer),
                BlockResult::kOk);
    }
    std::vector<uint8_t> one(kPage);
    EXPECT_EQ(link_->server().Pull(Whole(client, &one, 999)), BlockResult::kBusy);
    ASSERT_TRUE(Pump([&] { return done_.size() == kPages; }));
    for (const auto& [token, result] : done_) EXPECT_EQ(result, BlockResult::kOk) << token;
    for (size_t i = 0; i < kPages; ++i) {
      ASSERT_EQ(0, std::memcmp(local[i].data(), &link_->memory(client)[i * kPage], kPage));
      FillRandom(&rng_, absl::MakeSpan(local[i]));
    }
    Settle();
    EXPECT_FALSE(done_.contains(999)) << "a refused transfer completed";
  }
}

TEST_P(TransportConformance, TransfersOutsideWhatWasRegisteredAreRefused) {
  Start();
  const size_t client = Connect(4096);
  std::vector<uint8_t> local(4096);
  const auto refused = [&](auto change, BlockResult expected) {
    Transfer transfer = Whole(client, &local, 5);
    change(&transfer);
    EXPECT_EQ(link_->server().Pull(transfer), expected);
    EXPECT_EQ(link_->server().Push(transfer), expected);
  };
  refused([](Transfer* t) { t->region_set = 8; }, BlockResult::kInvalid);
  refused([](Transfer* t) { t->segments = {}; }, BlockResult::kInvalid);
  refused([](Transfer* t) { t->local = t->local.first(4095); }, BlockResult::kInvalid);
  refused([](Transfer* t) { t->peer = PeerId{1}; }, BlockResult::kUnavailable);
  refused([&](Transfer*) { segment_.address += 1; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.address -= 1; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.bytes = 4097; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.bytes = 0; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.bytes = UINT64_MAX; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.local_offset = UINT64_MAX; }, BlockResult::kInvalid);
  refused([&](Transfer*) { segment_.region = 1; }, BlockResult::kInvalid);
  Settle();
  EXPECT_TRUE(done_.empty());
  ExpectServed(client);
}

TEST_P(TransportConformance, RegionSetsAreReplacedOnlyAtRestAndCounted) {
  Start();
  const size_t client = Connect(1 << 20);
  Transport& server = link_->server();
  const RegionSet whole = WholeMemory(link_->region(client));
  std::vector<uint8_t> local(1 << 20);
  const uint64_t token = next_token_++;
  ASSERT_EQ(server.Pull(Whole(client, &local, token)), BlockResult::kOk);
  EXPECT_EQ(server.RegisterRegions(link_->peer(client), kSet, whole).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Pump([&] { return done_.contains(token); }));
  EXPECT_TRUE(server.RegisterRegions(link_->peer(client), kSet, whole).ok());
  ExpectServed(client);
  for (uint32_t i = 1; i < kRegionSetsPerPeerMax; ++i) {
    EXPECT_TRUE(server.RegisterRegions(link_->peer(client), 100 + i, whole).ok());
  }
  EXPECT_EQ(server.RegisterRegions(link_->peer(client), 99, whole).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.RegisterRegions(PeerId{77}, 1, whole).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformance, ClosingAPeerEndsItsTransfersAndNothingElse) {
  if (emulated()) GTEST_SKIP() << "one-sided access needs RDMA hardware for this";
  Start();
  for (int round = 0; round < 8; ++round) {
    done_.clear();
    constexpr size_t kBytes = 400'000;
    const size_t victim = Connect(kBytes), other = Connect(4096);
    ExpectServed(other);
    std::vector<std::vector<uint8_t>> local(16, std::vector<uint8_t>(kBytes));
    segment_ = {.region = 0, .address = link_->region(victim).address, .bytes = kBytes};
    const Segment segment = segment_;
    for (size_t i = 0; i < local.size(); ++i) {
      Transfer transfer = Whole(victim, &local[i], i);
      transfer.segments = {&segment, 1};
      ASSERT_EQ(i % 2 == 0 ? link_->server().Pull(transfer) : link_->server().Push(transfer),
                BlockResult::kOk);
    }
    ASSERT_EQ(link_->ClientSend(victim, AsBytes("late")), BlockResult::kOk);
    for (uint64_t i = rng_.Below(40); i > 0; --i) Step();
    const size_t messages = messages_[link_->peer(victim).value].size();
    link_->server().ClosePeer(link_->peer(victim));
    EXPECT_EQ(link_->server().Send(link_->peer(victim), AsBytes("x")), BlockResult::kUnavailable);
    EXPECT_EQ(link_->server().Pull(Whole(victim, &local[0], 77)), BlockResult::kUnavailable);
    ASSERT_TRUE(Pump([&] { return link_->stats().transfers_pending == 0; }));
    ASSERT_TRUE(Pump([&] { return done_.size() == local.size() + 1; }));
    // After its completion a transfer touches local memory no more.
    for (auto& buffer : local) std::fill(buffer.begin(), buffer.end(), uint8_t{0x5a});
    Settle();
    for (const auto& buffer : local) {
      ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t b) { return b == 0x5a; }));
    }
    EXPECT_EQ(messages_[link_->peer(victim).value].size(), messages);
    EXPECT_FALSE(downs_.contains(link_->peer(victim).value));
    ExpectServed(other);
    link_->server().ClosePeer(link_->peer(victim));  // void by now: nothing happens
    link_->server().ClosePeer(link_->peer(other));
    ASSERT_TRUE(Pump([&] { return link_->stats().peers_closing == 0; }));
    EXPECT_EQ(link_->stats().peers, 0u);
    EXPECT_EQ(link_->stats().operations_in_flight, 0u);
    link_->Kill(victim);
    link_->Kill(other);
  }
}

TEST_P(TransportConformance, ADeadPeerIsReportedOnceAndLast) {
  if (emulated()) GTEST_SKIP() << "one-sided access needs RDMA hardware for this";
  Start();
  const size_t other = Connect(4096);
  for (int round = 0; round < 8; ++round) {
    constexpr size_t kBytes = 400'000;
    const size_t victim = Connect(kBytes);
    std::vector<std::vector<uint8_t>> local(8, std::vector<uint8_t>(kBytes));
    const Segment segment = {
        .region = 0, .address = link_->region(victim).address, .local_offset = 0, .bytes = kBytes};
    done_.clear();
    ASSERT_EQ(link_->ClientSend(victim, AsBytes("hello")), BlockResult::kOk);
    ASSERT_TRUE(Pump([&] { return !messages_[link_->peer(victim).value].empty(); }));
    for (size_t i = 0; i < local.size(); ++i) {
      Transfer transfer = Whole(victim, &local[i], i);
      transfer.segments = {&segment, 1};
      ASSERT_EQ(i % 2 == 0 ? link_->server().Pull(transfer) : link_->server().Push(transfer),
                BlockResult::kOk);
    }
    for (uint64_t i = rng_.Below(40); i > 0; --i) Step();
    link_->Kill(victim);
    const uint64_t id = link_->peer(victim).value;
    ASSERT_TRUE(Pump([&] { return downs_.contains(id); })) << "round " << round;
    EXPECT_EQ(done_.size(), local.size()) << "kPeerDown came before a completion";
    EXPECT_EQ(link_->stats().transfers_pending, 0u);
    EXPECT_EQ(link_->server().Send(link_->peer(victim), AsBytes("x")), BlockResult::kUnavailable);
    Settle();
    EXPECT_EQ(downs_[id], 1);
    ExpectServed(other);
  }
  EXPECT_EQ(link_->stats().peers, 1u);
  EXPECT_EQ(link_->stats().peers_closing, 0u);
  EXPECT_EQ(link_->stats().messages_held, 0u);
}

TEST_P(TransportConformance, ClosingAPeerThatDiesReportsNothing) {
  Start();
  const size_t victim = Connect(4096);
  ExpectServed(victim);
  link_->Kill(victim);
  link_->server().ClosePeer(link_->peer(victim));
  Settle();
  EXPECT_TRUE(downs_.empty());
  ASSERT_TRUE(Pump([&] { return link_->stats().peers_closing == 0; }));
  EXPECT_EQ(link_->stats().peers, 0u);
}

TEST_P(TransportConformance, ArmTellsWhetherThereIsWork) {
  Start();
  const size_t client = Connect(4096);
  ExpectServed(client);
  ASSERT_TRUE(Pump([&] { return link_->server().Arm(); }));
  std::vector<uint8_t> local(4096);
  const uint64_t token = next_token_++;
  ASSERT_EQ(link_->server().Pull(Whole(client, &local, token)), BlockResult::kOk);
  if (link_->server().Arm()) {  // somebody else works on it, and will wake us
    pollfd woken = {.fd = link_->server().wake_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&woken, 1, 60'000), 1);
  }
  ASSERT_TRUE(Pump([&] { return done_.contains(token); }));
  link_->server().ClosePeer(link_->peer(client));
  ASSERT_TRUE(Pump([&] { return link_->server().Arm(); }));
}

TEST_P(TransportConformance, PollGivesNoMoreThanItIsAskedFor) {
  Start();
  const size_t client = Connect(4096);
  ExpectServed(client);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(link_->ClientSend(client, AsBytes("abc")), BlockResult::kOk);
  }
  size_t got = 0;
  for (int i = 0; i < 2'000'000 && got < 10; ++i) {
    link_->StepClients();
    NetEvent events[2];
    const size_t count = link_->server().Poll(absl::MakeSpan(events).first(1));
    ASSERT_LE(count, 1u);
    got += count;
  }
  EXPECT_EQ(got, 10u);
  EXPECT_EQ(link_->server().Poll({}), 0u);
}

std::string Name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ':' || c == ','; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance, ::testing::Values("loopback"), Name);
INSTANTIATE_TEST_SUITE_P(Uds, TransportConformance, ::testing::Values("uds:sealed", "uds:file"),
                         Name);
INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         ::testing::Values("ucx:tcp", "ucx:posix", "ucx:sysv",
                                           "ucx:", "one_sided:tcp"),
                         Name);

}  // namespace
}  // namespace crumb
