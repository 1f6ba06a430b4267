// UCX between processes: exact bytes, and what SIGKILL and SIGSTOP of one side do to the other.
// Waits only for descriptors, with a bound.
#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <map>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/rng.h"
#include "tests/conformance/net/ucx_child.h"

namespace crumb {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

class UcxProcess : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    UcxOptions options;
    options.tls = GetParam();
    options.keepalive_us = 20'000;
    options.peers_max = 16;
    auto made = UcxTransport::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    transport_ = *std::move(made);
  }

  std::unique_ptr<UcxChild> Start(UcxChild::Options options, const Region& lent = {}) {
    options.tls = GetParam();
    return UcxChild::Start(options, transport_.get(), lent);
  }

  void Step() {
    NetEvent events[64];
    const size_t count = transport_->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      const NetEvent& event = events[i];
      if (event.kind == NetEventKind::kMessage) {
        messages_.emplace_back(reinterpret_cast<const char*>(event.message.data()),
                               event.message.size());
      }
      if (event.kind == NetEventKind::kTransferDone) {
        EXPECT_TRUE(done_.emplace(event.token, event.result).second) << "completed twice";
      }
      if (event.kind == NetEventKind::kPeerDown) ++downs_[event.peer.value];
    }
    if (count > 0 || !transport_->Arm()) return;
    pollfd wait = {.fd = transport_->wake_fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 5);
  }
  template <typename Predicate>
  [[nodiscard]] bool Pump(Predicate until) {
    const uint64_t end_us = clock_.now_us() + 20'000'000;
    while (!until() && clock_.now_us() < end_us) Step();
    return until();
  }

  struct Flight {  // transfers of one peer under way
    std::vector<std::vector<uint8_t>> local;
    std::vector<Segment> segments;
  };
  // `count` transfers of the child's whole memory, pulls and pushes in turn; the pushes carry the
  // pattern that is there already.
  Flight Launch(const UcxChild& child, size_t count, uint64_t seed) {
    Flight flight;
    flight.local.resize(count);
    flight.segments.assign(count, {.region = 0,
                                   .address = child.region().address,
                                   .local_offset = 0,
                                   .bytes = child.region().bytes});
    for (size_t i = 0; i < count; ++i) {
      flight.local[i].resize(child.region().bytes);
      if (i % 2 == 1) FillPattern(seed, absl::MakeSpan(flight.local[i]));
      const Transfer transfer = {.peer = child.peer(),
                                 .region_set = 1,
                                 .segments = {&flight.segments[i], 1},
                                 .local = absl::MakeSpan(flight.local[i]),
                                 .token = next_token_++};
      EXPECT_EQ(i % 2 == 0 ? transport_->Pull(transfer) : transport_->Push(transfer),
                BlockResult::kOk);
    }
    return flight;
  }
  void ExpectExact(const UcxChild& child, size_t count, uint64_t seed) {
    done_.clear();
    const Flight flight = Launch(child, count, seed);
    ASSERT_TRUE(Pump([&] { return done_.size() == count; }));
    std::vector<uint8_t> expected(child.region().bytes);
    FillPattern(seed, absl::MakeSpan(expected));
    for (const auto& [token, result] : done_) ASSERT_EQ(result, BlockResult::kOk);
    for (size_t i = 0; i < count; i += 2) ASSERT_EQ(flight.local[i], expected);
  }

  SteadyClock clock_;
  std::unique_ptr<UcxTransport> transport_;
  Rng rng_{12};
  uint64_t next_token_ = 1;
  std::vector<std::string> messages_;
  std::map<uint64_t, BlockResult> done_;  // by token
  std::map<uint64_t, int> downs_;         // by peer
};

TEST_P(UcxProcess, BytesAndMessagesAreExact) {
  auto child = Start({.memory_bytes = 300'007, .seed = 5});
  ASSERT_NE(child, nullptr);
  ExpectExact(*child, 20, 5);
  // Scattered pushes: another pattern arrives piece by piece, in any order.
  std::vector<uint8_t> local(300'007);
  FillPattern(6, absl::MakeSpan(local));
  std::vector<Segment> segments;
  for (uint64_t at = 0; at < local.size();) {
    const uint64_t bytes = std::min<uint64_t>(1 + rng_.Below(900), local.size() - at);
    segments.push_back({0, child->region().address + at, at, bytes});
    at += bytes;
  }
  for (size_t i = segments.size(); i > 1; --i) std::swap(segments[i - 1], segments[rng_.Below(i)]);
  done_.clear();
  ASSERT_EQ(transport_->Push({.peer = child->peer(),
                              .region_set = 1,
                              .segments = segments,
                              .local = absl::MakeSpan(local),
                              .token = 0}),
            BlockResult::kOk);
  ASSERT_TRUE(Pump([&] { return !done_.empty(); }));
  EXPECT_TRUE(child->Verify(6));
  EXPECT_FALSE(child->Verify(5));
  std::vector<std::string> sent;
  while (messages_.size() < 500) {
    if (sent.size() < 500) {
      std::string text(1 + rng_.Below(3000), static_cast<char>(rng_.Next()));
      if (transport_->Send(child->peer(), AsBytes(text)) == BlockResult::kOk) sent.push_back(text);
    }
    Step();
    ASSERT_TRUE(downs_.empty());
  }
  EXPECT_EQ(messages_, sent);
}

TEST_P(UcxProcess, AnOrderlyEndIsReported) {
  auto child = Start({});
  ASSERT_NE(child, nullptr);
  ExpectExact(*child, 2, 1);
  const uint64_t id = child->peer().value;
  child.reset();
  ASSERT_TRUE(Pump([&] { return downs_.contains(id); }));
  ASSERT_TRUE(Pump([&] { return transport_->stats().peers_closing == 0; }));
}

TEST_P(UcxProcess, FiftyKilledPeersLeaveNothingBehind) {
  auto warm = Start({});
  ASSERT_NE(warm, nullptr);
  ExpectExact(*warm, 4, 1);
  warm->Kill();
  ASSERT_TRUE(Pump([&] { return transport_->stats().peers == 0; }));
  ASSERT_TRUE(Pump([&] { return transport_->stats().peers_closing == 0; }));
  warm.reset();
  const size_t descriptors = OpenDescriptors();
  for (int round = 0; round < 50; ++round) {
    done_.clear();
    auto child = Start({.memory_bytes = 256 * 1024});
    ASSERT_NE(child, nullptr);
    constexpr size_t kCount = 32;
    const Flight flight = Launch(*child, kCount, 1);
    // At any point: before the two are connected, in the middle, or just after the end.
    const size_t part = rng_.Below(kCount + 1);
    for (uint64_t steps = rng_.Below(20); steps > 0; --steps) Step();
    ASSERT_TRUE(Pump([&] { return round % 4 == 0 || done_.size() >= part; }));
    child->Kill();
    const uint64_t id = child->peer().value;
    ASSERT_TRUE(Pump([&] { return downs_.contains(id); })) << "round " << round;
    EXPECT_EQ(done_.size(), kCount);
    EXPECT_EQ(downs_[id], 1);
    ASSERT_TRUE(Pump([&] { return transport_->stats().peers_closing == 0; })) << round;
    const NetStats stats = transport_->stats();
    EXPECT_EQ(stats.transfers_pending, 0u);
    EXPECT_EQ(stats.operations_in_flight, 0u);
    EXPECT_EQ(stats.messages_held, 0u);
  }
  // Sockets that the dead left are closed when UCX comes to them.
  EXPECT_TRUE(Pump([&] { return OpenDescriptors() <= descriptors; }))
      << OpenDescriptors() << " descriptors, " << descriptors << " before";
  auto fresh = Start({.memory_bytes = 64 * 1024});
  ASSERT_NE(fresh, nullptr);
  const uint64_t start_us = clock_.now_us();
  ExpectExact(*fresh, 100, 1);
  EXPECT_LT(clock_.now_us() - start_us, 2'000'000u);
}

TEST_P(UcxProcess, AStoppedPeerHoldsNobodyUp) {
  auto sleeper = Start({.memory_bytes = 2 << 20}), honest = Start({.seed = 9});
  ASSERT_NE(sleeper, nullptr);
  ASSERT_NE(honest, nullptr);
  ExpectExact(*honest, 2, 9);
  sleeper->Signal(SIGSTOP);
  const uint64_t first = next_token_;
  Flight flight = Launch(*sleeper, 16, 1);
  for (int i = 0; i < 10; ++i) {
    std::map<uint64_t, BlockResult> before = done_;
    ExpectExact(*honest, 4, 9);
  }
  EXPECT_GT(transport_->stats().transfers_pending, 0u);
  done_.clear();
  transport_->ClosePeer(sleeper->peer());
  ASSERT_TRUE(Pump([&] { return transport_->stats().transfers_pending == 0; }));
  EXPECT_LE(done_.size(), 16u);
  EXPECT_GE(done_.begin()->first, first);
  for (auto& buffer : flight.local) std::fill(buffer.begin(), buffer.end(), uint8_t{0x5a});
  sleeper->Signal(SIGCONT);
  ASSERT_TRUE(Pump([&] { return transport_->stats().peers_closing == 0; }));
  ExpectExact(*honest, 10, 9);
  for (const auto& buffer : flight.local) {
    ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t b) { return b == 0x5a; }));
  }
}

// The other side of the table: this process lends, the one that drives is killed.
TEST_P(UcxProcess, ALenderOutlivesItsKilledDrivers) {
  std::vector<uint8_t> memory(512 * 1024);
  FillPattern(3, absl::MakeSpan(memory));
  const auto lent = transport_->Lend(absl::MakeSpan(memory));
  ASSERT_TRUE(lent.ok()) << lent.status();
  for (int round = 0; round < 20; ++round) {
    auto driver = Start({.role = ChildRole::kDriver}, *lent);
    ASSERT_NE(driver, nullptr);
    const uint64_t id = driver->peer().value;
    for (uint64_t steps = rng_.Below(500); steps > 0; --steps) Step();
    driver->Kill();
    ASSERT_TRUE(Pump([&] { return downs_.contains(id); })) << "round " << round;
    ASSERT_TRUE(Pump([&] { return transport_->stats().peers_closing == 0; })) << round;
    EXPECT_EQ(transport_->stats().messages_held, 0u);
  }
}

std::string Name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.empty() ? "any" : info.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ucx, UcxProcess, ::testing::Values("tcp", ""), Name);

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  int exit_code = 0;
  if (crumb::RunUcxChild(argc, argv, &exit_code)) return exit_code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
