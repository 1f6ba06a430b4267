// What an engine relies on, against a real crumbd over every plane: shared memory, cancelled waits,
// prefetch, a daemon that stops or dies and comes back while the client looks after itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "client/cli/bench_values.h"
#include "crumb/client.h"
#include "tests/support/child_daemon.h"

namespace crumb::client {
namespace {

using testing::HasSubstr;
using Time = std::chrono::steady_clock;

constexpr uint64_t kValue = 64 << 10;
constexpr uint32_t kSlots = 64;

double Seconds(Time::time_point since) {
  return std::chrono::duration<double>(Time::now() - since).count();
}

LayoutSpec Opaque() {
  LayoutSpec spec;
  spec.name = "opaque";
  spec.model = "m";
  spec.revision = "r";
  spec.weights_dtype = "none";
  spec.dtype = "opaque";
  spec.rope_kind = "none";
  spec.codec = "raw";
  spec.page_tokens = 16;
  LayerGroup& group = spec.groups.emplace_back();
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = kValue / 16;
  group.layer_ids = {0};
  return spec;
}

struct Mode {
  const char* name;
  DataPlane plane;
  bool shared;
};

class AsyncClient : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    std::ofstream(dir_.path() + "/crumbd.yaml")
        << "data_dir: " << dir_.path() << "/data\n"
        << "listen: {grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: " << dir_.path() << "/s}\n"
        << "pool: {dram_bytes: 16MiB}\nnvme: {bytes: 64MiB, segment_bytes: 4MiB}\n"
        << "log: {level: warning}\n";
    StartDaemon();
    options_.server = "unix:" + dir_.path() + "/s";
    options_.data_plane = GetParam().plane;
    options_.deadline_ms = 20'000;
    options_.grace_ms = 200;
    options_.breaker_open_ms = 100;
    options_.breaker_open_ms_max = 400;
  }
  void TearDown() override { client_.reset(); }

  void StartDaemon() {
    auto daemon = ChildDaemon::Spawn({.program = std::getenv("CRUMBD"),
                                      .config_file = dir_.path() + "/crumbd.yaml",
                                      .log_file = dir_.path() + "/log"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    const absl::Status ready = daemon_->WaitReady(60'000);
    ASSERT_TRUE(ready.ok()) << ready;
  }
  void Connect() {
    Status status = Client::Connect(options_, &client_);
    ASSERT_TRUE(status.ok()) << status.message;
    status = client_->RegisterLayout(Opaque(), &layout_);
    ASSERT_TRUE(status.ok()) << status.message;
    if (GetParam().shared) {
      ASSERT_TRUE(SharedMemory::Create(kSlots * kValue, &shared_).ok());
      ASSERT_TRUE(client_->ShareMemory(shared_->range()).ok());
      memory_ = shared_->data();
    } else {
      private_.resize(kSlots * kValue);
      memory_ = private_.data();
    }
    status = client_->LendPages(layout_, memory_, kSlots * kValue, kValue, &set_);
    ASSERT_TRUE(status.ok()) << status.message;
  }
  MutableBytes Slot(uint32_t slot) { return {memory_ + slot * kValue, kValue}; }
  static Block At(std::string_view key, uint32_t slot) {
    Block block;
    block.key = key;
    block.slot = slot;
    return block;
  }
  // Into done_, by ticket.
  bool Until(const std::function<bool()>& so, double seconds = 30) {
    const auto start = Time::now();
    while (!so() && Seconds(start) < seconds) client_->Drain(10, &done_);
    return so();
  }
  const Completion* Find(Ticket ticket) const {
    for (const Completion& one : done_) {
      if (one.ticket == ticket) return &one;
    }
    return nullptr;
  }
  Result Await(Ticket ticket) {
    EXPECT_TRUE(Until([&] { return Find(ticket) != nullptr; }));
    const Completion* found = Find(ticket);
    return found == nullptr || found->results.empty() ? Result() : found->results[0];
  }
  Result Put(std::string_view key, uint32_t slot, bool durable = false) {
    RequestOptions options;
    options.durable = durable;
    Ticket ticket = 0;
    const Status status = client_->SubmitPut(layout_, set_, {At(key, slot)}, options, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return Await(ticket);
  }
  Result Get(std::string_view key, uint32_t slot, const RequestOptions& options = {}) {
    Ticket ticket = 0;
    const Status status = client_->SubmitGet(layout_, set_, {At(key, slot)}, options, &ticket);
    return status.ok() ? Await(ticket) : Result{.code = status.code, .note = status.message};
  }

  ScratchDir dir_;
  std::unique_ptr<ChildDaemon> daemon_;
  Options options_;
  std::unique_ptr<SharedMemory> shared_;  // outlives the client
  std::vector<uint8_t> private_;
  uint8_t* memory_ = nullptr;
  std::unique_ptr<Client> client_;
  Layout layout_;
  uint32_t set_ = 0;
  std::vector<Completion> done_;
  const cli::BenchValues values_{cli::ValueKind::kBytes, kValue, 1};
};

INSTANTIATE_TEST_SUITE_P(Modes, AsyncClient,
                         testing::Values(Mode{"mapped", DataPlane::kShm, true},
                                         Mode{"bounced", DataPlane::kShm, false},
                                         Mode{"ucx", DataPlane::kUcx, false},
                                         Mode{"grpc", DataPlane::kGrpc, false}),
                         [](const auto& mode) { return std::string(mode.param.name); });

TEST_P(AsyncClient, ManyRequestsInFlightAllComeBackRight) {
  Connect();
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < kSlots / 2; ++i) keys.push_back("k" + std::to_string(i));
  for (int round = 0; round < 20; ++round) {
    std::vector<Ticket> tickets(kSlots / 2);
    for (uint32_t i = 0; i < kSlots / 2; ++i) {
      values_.Fill(i, Slot(i));
      ASSERT_TRUE(client_->SubmitPut(layout_, set_, {At(keys[i], i)}, {}, &tickets[i]).ok());
    }
    ASSERT_TRUE(Until([this] { return client_->in_flight() == 0; }));
    for (uint32_t i = 0; i < kSlots / 2; ++i) {
      const uint32_t slot = kSlots / 2 + i;
      ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At(keys[i], slot)}, {}, &tickets[i]).ok());
    }
    ASSERT_TRUE(Until([this] { return client_->in_flight() == 0; }));
    for (uint32_t i = 0; i < kSlots / 2; ++i) {
      EXPECT_EQ(Await(tickets[i]).code, Code::kOk);
      EXPECT_TRUE(values_.Matches(i, Slot(kSlots / 2 + i)));
    }
    client_->Recycle(&done_);
  }
}

TEST_P(AsyncClient, ACancelledWaitEndsAtOnceAndItsSlotIsTheWorkersAgain) {
  Connect();
  RequestOptions wait;
  wait.wait_ms = 60'000;
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("never", 3)}, wait, &ticket).ok());
  EXPECT_EQ(client_->Drain(100, &done_), 0u);
  EXPECT_TRUE(client_->SlotIsOwned(set_, 3));
  const auto start = Time::now();
  ASSERT_TRUE(client_->Cancel(ticket).ok());
  EXPECT_EQ(Await(ticket).code, Code::kCancelled);
  EXPECT_EQ(Find(ticket)->code, Code::kCancelled);
  EXPECT_LT(Seconds(start), 5.0);
  EXPECT_FALSE(client_->SlotIsOwned(set_, 3));
  EXPECT_EQ(client_->Cancel(ticket).code, Code::kMiss);
  EXPECT_EQ(client_->stats().cancelled, 1u);
  // The wait is over by itself at wait_ms, whatever the deadline is.
  wait.wait_ms = 200;
  wait.deadline_ms = 60'000;
  const auto waited = Time::now();
  EXPECT_EQ(Get("never", 3, wait).code, Code::kTimeout);
  EXPECT_GE(Seconds(waited), 0.2);
  EXPECT_LT(Seconds(waited), 10.0);
  EXPECT_EQ(client_->stats().timeouts, 0u);  // it was answered
}

TEST_P(AsyncClient, PrefetchedPagesAreInMemoryWhenTheyAreGot) {
  Connect();
  // Far more than the pool holds: the first ones are on NVMe alone.
  for (uint64_t i = 0; i < 400; ++i) {
    values_.Fill(i, Slot(0));
    ASSERT_EQ(Put("p" + std::to_string(i), 0).code, Code::kOk);
    done_.clear();
  }
  std::vector<std::string> keys;
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < 8; ++i) keys.push_back("p" + std::to_string(i));
  keys.push_back("nowhere");
  for (const std::string& key : keys) blocks.push_back(At(key, 0));
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitLookup(layout_, blocks, {}, &ticket).ok());
  EXPECT_EQ(Await(ticket).tier, Tier::kNvme);
  ASSERT_TRUE(client_->SubmitPrefetch(layout_, blocks, {}, &ticket).ok());
  ASSERT_TRUE(Until([&] { return Find(ticket) != nullptr; }));
  const std::vector<Result> results = Find(ticket)->results;
  ASSERT_EQ(results.size(), 9u);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(results[i].code, Code::kOk) << i << " " << ToString(results[i].code);
    EXPECT_EQ(results[i].tier, Tier::kDram);
  }
  EXPECT_EQ(results[8].code, Code::kMiss);
  for (uint32_t i = 0; i < 8; ++i) {
    const Result got = Get(keys[i], i);
    EXPECT_EQ(got.code, Code::kOk);
    EXPECT_EQ(got.tier, Tier::kDram);
    EXPECT_TRUE(values_.Matches(i, Slot(i)));
  }
}

TEST_P(AsyncClient, AStoppedDaemonOpensTheCircuitAndItClosesWhenItGoesOn) {
  options_.breaker_failures = 3;
  Connect();
  ASSERT_EQ(Put("k", 0).code, Code::kOk);
  daemon_->Stop();
  RequestOptions soon;
  soon.deadline_ms = 100;
  const auto stopped = Time::now();
  Ticket ticket = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("k", i + 1)}, soon, &ticket).ok());
  }
  ASSERT_TRUE(Until([this] { return client_->in_flight() == 0; }));
  EXPECT_LT(Seconds(stopped), 5.0);
  for (const Completion& one : done_) {
    EXPECT_TRUE(one.ticket + 3 <= ticket || one.results[0].code != Code::kOk);
  }
  EXPECT_EQ(client_->stats().timeouts, 3u);
  EXPECT_EQ(client_->stats().circuit, Circuit::kOpen);
  // Refused at once, with words.
  const auto refused = Time::now();
  uint32_t refusals = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    const Status status = client_->SubmitGet(layout_, set_, {At("k", 10)}, soon, &ticket);
    if (status.code == Code::kUnavailable) ++refusals;
  }
  EXPECT_GE(refusals, 98u);  // but for a probe
  EXPECT_LT(Seconds(refused), 0.5);
  daemon_->Signal(SIGCONT);
  const auto goes_on = Time::now();
  ASSERT_TRUE(Until([this] {
    return Get("k", 20).code == Code::kOk && client_->stats().circuit == Circuit::kClosed;
  }));
  EXPECT_LT(Seconds(goes_on), 10.0);
  ASSERT_TRUE(Until([this] { return client_->stats().unanswered == 0; }));
}

TEST_P(AsyncClient, ADaemonKilledInMidFlightIsConnectedToAgainAndPagesComeBack) {
  Connect();
  for (uint64_t i = 0; i < 4; ++i) {
    values_.Fill(i, Slot(static_cast<uint32_t>(i)));
    ASSERT_EQ(Put("kept" + std::to_string(i), static_cast<uint32_t>(i), true).code, Code::kOk);
  }
  for (int round = 0; round < 3; ++round) {
    Ticket ticket = 0;
    for (uint32_t i = 0; i < 32; ++i) {
      ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("kept0", 16 + i)}, {}, &ticket).ok());
    }
    daemon_->Kill();
    ASSERT_TRUE(Until([this] { return client_->in_flight() == 0 && !client_->connected(); }));
    const auto down = Time::now();
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(client_->SubmitGet(layout_, set_, {At("kept0", 8)}, {}, &ticket).code,
                Code::kUnavailable);
    }
    EXPECT_LT(Seconds(down), 0.5);  // nobody waited for the helper
    StartDaemon();
    const auto up = Time::now();
    ASSERT_TRUE(Until([this] { return client_->connected(); }));
    EXPECT_LT(Seconds(up), 5.0);
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_EQ(Get("kept" + std::to_string(i), 8 + i).code, Code::kOk) << round;
      EXPECT_TRUE(values_.Matches(i, Slot(8 + i)));
    }
    done_.clear();
  }
  EXPECT_EQ(client_->stats().reconnects, 3u);
  EXPECT_EQ(client_->stats().losses, 3u);
}

TEST_P(AsyncClient, AClientThatGoesWhileItConnectsAgainDoesNotHang) {
  Connect();
  daemon_->Kill();
  // Over gRPC an idle client learns of it by its next request.
  Ticket ticket = 0;
  static_cast<void>(client_->SubmitLookup(layout_, {At("k", 0)}, {}, &ticket));
  ASSERT_TRUE(Until([this] { return !client_->connected(); }));
  client_->Drain(0, &done_);
  const auto start = Time::now();
  client_.reset();
  EXPECT_LT(Seconds(start), 5.0);
}

}  // namespace
}  // namespace crumb::client
