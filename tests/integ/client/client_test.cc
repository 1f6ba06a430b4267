// The client library against a daemon that misbehaves on demand, over both data planes.
#include "crumb/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "gpu/device/gpu_probe.h"
#include "tests/integ/client/fake_daemon.h"

namespace crumb::client {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kValueBytes = 3 << 20;  // several chunks
constexpr uint32_t kSlots = 4;

LayoutSpec Opaque(const std::string& name_space) {
  LayoutSpec spec;
  spec.name = "opaque";
  spec.model = "m";
  spec.revision = "r";
  spec.weights_dtype = "none";
  spec.dtype = "opaque";
  spec.rope_kind = "none";
  spec.name_space = name_space;
  spec.page_tokens = 4;
  LayerGroup& group = spec.groups.emplace_back();
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = kValueBytes / 4;
  group.layer_ids = {0};
  return spec;
}

std::string NameOf(DataPlane plane) {
  if (plane == DataPlane::kShm) return "shm";
  return plane == DataPlane::kUcx ? "ucx" : "grpc";
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

class ClientPlanes : public testing::TestWithParam<DataPlane> {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-client-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    StartDaemon();
    memory_.resize(kSlots * kValueBytes);
    options_.server = "unix:" + dir_ + "/s";
    options_.data_plane = GetParam();
    options_.deadline_ms = 5000;
    options_.grace_ms = 200;
    options_.auto_reconnect = false;
    ConnectClient();
  }
  void TearDown() override {
    client_.reset();
    daemon_.reset();
    std::filesystem::remove_all(dir_);
  }
  void StartDaemon() { daemon_ = FakeDaemon::Start({.socket = dir_ + "/s"}); }
  void ConnectClient() {
    const Status status = Client::Connect(options_, &client_);
    ASSERT_TRUE(status.ok()) << status.message;
    const Status registered = client_->RegisterLayout(Opaque("a"), &layout_);
    ASSERT_TRUE(registered.ok()) << registered.message;
    ASSERT_EQ(layout_.raw_bytes.at(0), kValueBytes);
    const Status lent =
        client_->LendPages(layout_, memory_.data(), memory_.size(), kValueBytes, &set_);
    ASSERT_TRUE(lent.ok()) << lent.message;
  }

  uint8_t* Slot(uint32_t slot) { return memory_.data() + slot * kValueBytes; }
  void Fill(uint32_t slot, uint8_t seed) {
    for (uint64_t i = 0; i < kValueBytes; ++i) Slot(slot)[i] = static_cast<uint8_t>(i * 31 + seed);
  }
  bool Holds(uint32_t slot, uint8_t seed) {
    for (uint64_t i = 0; i < kValueBytes; ++i) {
      if (Slot(slot)[i] != static_cast<uint8_t>(i * 31 + seed)) return false;
    }
    return true;
  }
  static Block At(std::string_view key, uint32_t slot) {
    Block block;
    block.key = key;
    block.slot = slot;
    return block;
  }

  Completion Wait(Ticket ticket, double seconds = 30) {
    const auto start = Clock::now();
    std::vector<Completion> done;
    while (Seconds(start) < seconds) {
      client_->Drain(50, &done);
      for (const Completion& one : done) {
        if (one.ticket == ticket) return one;
      }
    }
    ADD_FAILURE() << "no completion";
    return {};
  }
  Result ResultOf(Ticket ticket) {
    const Completion done = Wait(ticket);
    return done.results.empty() ? Result() : done.results[0];
  }
  Result Put(std::string_view key, uint32_t slot, const RequestOptions& options = {}) {
    Ticket ticket = 0;
    const Status status = client_->SubmitPut(layout_, set_, {At(key, slot)}, options, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ResultOf(ticket);
  }
  Result Get(std::string_view key, uint32_t slot, const RequestOptions& options = {}) {
    Ticket ticket = 0;
    const Status status = client_->SubmitGet(layout_, set_, {At(key, slot)}, options, &ticket);
    EXPECT_TRUE(status.ok()) << status.message;
    return ResultOf(ticket);
  }
  // Progress until it is so.
  bool Until(const std::function<bool()>& so, double seconds = 10) {
    const auto start = Clock::now();
    std::vector<Completion> ignored;
    while (!so() && Seconds(start) < seconds) client_->Drain(10, &ignored);
    return so();
  }

  std::string dir_;
  std::unique_ptr<FakeDaemon> daemon_;
  Options options_;
  std::unique_ptr<Client> client_;
  Layout layout_;
  std::vector<uint8_t> memory_;
  uint32_t set_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Planes, ClientPlanes,
                         testing::Values(DataPlane::kShm, DataPlane::kUcx, DataPlane::kGrpc),
                         [](const auto& plane) { return NameOf(plane.param); });

TEST_P(ClientPlanes, WhatWasPutComesBack) {
  EXPECT_THAT(client_->data_plane(), HasSubstr(NameOf(GetParam())));
  Fill(0, 1);
  EXPECT_EQ(Put("key", 0).code, Code::kOk);
  const Result result = Get("key", 2);
  EXPECT_EQ(result.code, Code::kOk);
  EXPECT_EQ(result.tier, Tier::kDram);
  EXPECT_EQ(result.value_bytes, kValueBytes);
  EXPECT_TRUE(Holds(2, 1));
  EXPECT_EQ(Get("other", 2).code, Code::kMiss);
  EXPECT_TRUE(Holds(2, 1));
}

TEST_P(ClientPlanes, BatchesAnswerInOrder) {
  Fill(0, 1);
  Fill(1, 2);
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitPut(layout_, set_, {At("a", 0), At("b", 1)}, {}, &ticket).ok());
  EXPECT_EQ(Wait(ticket).prefix, 2u);
  ASSERT_TRUE(
      client_->SubmitGet(layout_, set_, {At("b", 2), At("none", 0), At("a", 3)}, {}, &ticket).ok());
  const Completion done = Wait(ticket);
  ASSERT_EQ(done.results.size(), 3u);
  EXPECT_EQ(done.results[0].code, Code::kOk);
  EXPECT_EQ(done.results[1].code, Code::kMiss);
  EXPECT_EQ(done.results[2].code, Code::kOk);
  EXPECT_EQ(done.prefix, 1u);
  EXPECT_TRUE(Holds(2, 2));
  EXPECT_TRUE(Holds(3, 1));
}

TEST_P(ClientPlanes, LookupDeleteAndPin) {
  Put("a", 0);
  Put("b", 0);
  Ticket ticket = 0;
  RequestOptions options;
  options.stop_at_gap = true;
  ASSERT_TRUE(
      client_->SubmitLookup(layout_, {At("a", 0), At("x", 0), At("b", 0)}, options, &ticket).ok());
  Completion done = Wait(ticket);
  ASSERT_EQ(done.results.size(), 3u);
  EXPECT_EQ(done.prefix, 1u);
  std::vector<Result> pinned;
  ASSERT_TRUE(client_->Pin(layout_, {At("a", 0), At("x", 0)}, 1000, &pinned).ok());
  ASSERT_EQ(pinned.size(), 2u);
  EXPECT_EQ(pinned[0].code, Code::kOk);
  EXPECT_EQ(pinned[1].code, Code::kMiss);
  ASSERT_TRUE(client_->SubmitDelete(layout_, {At("a", 0), At("x", 0)}, &ticket).ok());
  done = Wait(ticket);
  EXPECT_EQ(done.results[0].code, Code::kOk);
  EXPECT_EQ(done.results[1].code, Code::kMiss);
  EXPECT_EQ(Get("a", 1).code, Code::kMiss);
  EXPECT_EQ(Get("b", 1).code, Code::kOk);
}

TEST_P(ClientPlanes, DamageOnTheWayIsNeverAHit) {
  Fill(0, 1);
  Put("key", 0);
  daemon_->Set({.flip_byte = true});
  EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
  daemon_->Set({.wrong_checksum = true});
  EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
  if (GetParam() == DataPlane::kGrpc) {
    daemon_->Set({.short_stream = true});
    EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
    daemon_->Set({.long_stream = true});
    EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
    daemon_->Set({.no_header = true});
    EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
  }
  daemon_->Set({});
  EXPECT_EQ(Get("key", 1).code, Code::kOk);
}

TEST_P(ClientPlanes, RefusalsAreReported) {
  daemon_->Set({.put_result = BlockResult::kQuota});
  const Result result = Put("key", 0);
  EXPECT_EQ(result.code, Code::kQuota);
  EXPECT_EQ(daemon_->values(), 0u);
}

TEST_P(ClientPlanes, InFlightIsBounded) {
  client_.reset();
  options_.requests_in_flight_max = 3;
  ConnectClient();
  daemon_->Set({.hold = true});
  Ticket ticket = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("k", i)}, {}, &ticket).ok());
  }
  const Status status = client_->SubmitGet(layout_, set_, {At("k", 3)}, {}, &ticket);
  EXPECT_EQ(status.code, Code::kBusy);
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(client_->in_flight(), 3u);
  daemon_->Set({});
  EXPECT_TRUE(Until([this] { return client_->in_flight() == 0; }));
  EXPECT_TRUE(client_->SubmitGet(layout_, set_, {At("k", 3)}, {}, &ticket).ok());
  Wait(ticket);
}

TEST_P(ClientPlanes, ATimeoutIsBoundedAndItsSlotStaysOwnedWhileAnAnswerMayCome) {
  Fill(0, 1);
  Put("key", 0);
  daemon_->Set({.hold = true, .ignore_cancel = true});
  RequestOptions options;
  options.deadline_ms = 100;
  Ticket ticket = 0;
  const auto start = Clock::now();
  ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("key", 1)}, options, &ticket).ok());
  EXPECT_TRUE(client_->SlotIsOwned(set_, 1));
  const Completion done = Wait(ticket);
  EXPECT_LT(Seconds(start), 2.0);
  EXPECT_EQ(done.results[0].code, Code::kTimeout);
  EXPECT_EQ(client_->in_flight(), 0u);
  if (GetParam() == DataPlane::kUcx) {
    // The daemon may still write there: the slot is not to be had.
    EXPECT_TRUE(client_->SlotIsOwned(set_, 1));
    Ticket second = 0;
    EXPECT_EQ(client_->SubmitGet(layout_, set_, {At("key", 1)}, {}, &second).code, Code::kBusy);
    EXPECT_EQ(client_->Unlend(set_).code, Code::kBusy);
  }
  daemon_->Set({});
  EXPECT_TRUE(Until([this] { return !client_->SlotIsOwned(set_, 1); }));
  EXPECT_EQ(Get("key", 1).code, Code::kOk);
  EXPECT_TRUE(Holds(1, 1));
  EXPECT_TRUE(client_->Unlend(set_).ok());
}

TEST_P(ClientPlanes, EventFdIsReadableWhenThereIsSomethingToDrain) {
  const auto readable = [this](int ms) {
    pollfd poll{.fd = client_->event_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, ms) == 1;
  };
  std::vector<Completion> done;
  Ticket ticket = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(client_->SubmitLookup(layout_, {At("k", 0)}, {}, &ticket).ok());
    done.clear();
    // What a worker's event loop does: sleep on the fd, drain without waiting.
    for (int turn = 0; turn < 1000 && done.empty(); ++turn) {
      ASSERT_TRUE(readable(10'000)) << "slept through round " << round;
      client_->Drain(0, &done);
    }
    ASSERT_EQ(done.size(), 1u);
    while (client_->Drain(0, &done) != 0) {
    }
  }
  const int fd = client_->event_fd();
  EXPECT_FALSE(readable(0));
  EXPECT_EQ(client_->event_fd(), fd);
}

TEST_P(ClientPlanes, TheDeathOfTheDaemonEndsEverythingAndReconnectRestoresIt) {
  Fill(0, 1);
  Put("key", 0);
  std::vector<Layout> listed;
  for (int round = 0; round < 3; ++round) {
    daemon_->Set({.hold = true});
    Ticket ticket = 0;
    ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("key", 1), At("key", 2)}, {}, &ticket).ok());
    if (GetParam() == DataPlane::kGrpc) {
      ASSERT_TRUE(Until([this] { return daemon_->held() > 0; }));
    }
    const auto start = Clock::now();
    daemon_.reset();
    const Completion done = Wait(ticket);
    EXPECT_LT(Seconds(start), 3.0);
    for (const Result& result : done.results) EXPECT_NE(result.code, Code::kOk);
    ASSERT_TRUE(Until([this] { return !client_->connected(); }));
    // Without a daemon everything is refused at once.
    const auto refused = Clock::now();
    EXPECT_EQ(client_->SubmitPut(layout_, set_, {At("key", 0)}, {}, &ticket).code,
              Code::kUnavailable);
    EXPECT_EQ(client_->Reconnect().code, Code::kUnavailable);
    EXPECT_EQ(client_->Reconnect().code, Code::kUnavailable);
    EXPECT_EQ(client_->RegisterLayout(Opaque("b"), &layout_).code, Code::kUnavailable);
    EXPECT_LT(Seconds(refused), 0.5);
    StartDaemon();
    ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 3.0));
    // Layout and lent memory are there again under the same handles; the fake forgot the page.
    EXPECT_EQ(Get("key", 1).code, Code::kMiss);
    EXPECT_EQ(Put("key", 0).code, Code::kOk);
    EXPECT_EQ(Get("key", 3).code, Code::kOk);
    EXPECT_TRUE(Holds(3, 1));
  }
}

TEST_P(ClientPlanes, ASessionThatTheDaemonForgotIsALoss) {
  Put("key", 0);
  daemon_->Set({.hold = true});
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("key", 1)}, {}, &ticket).ok());
  daemon_->Set({.hold = GetParam() != DataPlane::kGrpc, .drop_session = true});
  const Completion done = Wait(ticket);
  EXPECT_EQ(done.results[0].code, Code::kUnavailable);
  ASSERT_TRUE(Until([this] { return !client_->connected(); }));
  daemon_->Set({});
  ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 3.0));
  EXPECT_EQ(Get("key", 1).code, Code::kOk);
}

TEST_P(ClientPlanes, GoodbyeEndsTheSession) {
  EXPECT_EQ(daemon_->sessions(), 1u);
  client_.reset();
  EXPECT_EQ(daemon_->sessions(), 0u);
}

TEST_P(ClientPlanes, WrongInputsAreRefusedWithWords) {
  Ticket ticket = 7;
  EXPECT_THAT(client_->SubmitPut(layout_, set_, {At("", 0)}, {}, &ticket).message,
              HasSubstr("a key of 0 bytes"));
  EXPECT_EQ(ticket, 0u);
  const std::string long_key(257, 'k');
  EXPECT_EQ(client_->SubmitGet(layout_, set_, {At(long_key, 0)}, {}, &ticket).code, Code::kInvalid);
  EXPECT_THAT(client_->SubmitGet(layout_, set_, {At("k", kSlots)}, {}, &ticket).message,
              HasSubstr("slot 4"));
  EXPECT_THAT(client_->SubmitGet(layout_, 99, {At("k", 0)}, {}, &ticket).message,
              HasSubstr("region set 99"));
  EXPECT_THAT(client_->SubmitGet(Layout(), set_, {At("k", 0)}, {}, &ticket).message,
              HasSubstr("layout handle 0"));
  Layout other;
  ASSERT_TRUE(client_->RegisterLayout(Opaque("b"), &other).ok());
  EXPECT_THAT(client_->SubmitGet(other, set_, {At("k", 0)}, {}, &ticket).message,
              HasSubstr("another layout"));
  LayoutSpec bad = Opaque("c");
  bad.page_tokens = 0;
  EXPECT_EQ(client_->RegisterLayout(bad, &other).code, Code::kInvalid);
  uint32_t set = 0;
  EXPECT_EQ(client_->LendPages(layout_, nullptr, 5, 5, &set).code, Code::kInvalid);
  EXPECT_EQ(client_->Unlend(99).code, Code::kInvalid);
}

TEST_P(ClientPlanes, MemoryThatIsNoGpusIsRefusedWithWords) {
  GpuRegions regions;
  uint32_t set = 0;
  Status status = client_->RegisterGpuRegions(layout_, regions, &set);
  EXPECT_EQ(status.code, Code::kInvalid);
  EXPECT_THAT(status.message, HasSubstr("RegisterGpuRegions: no memory was given"));
  std::vector<uint8_t> memory(4096);
  regions.base = memory.data();
  regions.bytes = regions.slot_bytes = memory.size();
  EXPECT_THAT(client_->RegisterGpuRegions(Layout(), regions, &set).message,
              HasSubstr("the layout is not registered"));
  status = client_->RegisterGpuRegions(layout_, regions, &set);
  EXPECT_EQ(status.code, Code::kInvalid) << status.message;
  if (!ProbeGpus().built_with_cuda) {
    EXPECT_THAT(status.message, HasSubstr("built without CUDA"));
    EXPECT_THAT(status.message, HasSubstr("LendTensors"));
  }
}

TEST_P(ClientPlanes, RegisteringTwiceGivesOneHandleAndListsIt) {
  Layout again;
  ASSERT_TRUE(client_->RegisterLayout(Opaque("a"), &again).ok());
  EXPECT_EQ(again.handle, layout_.handle);
  std::vector<Layout> all;
  ASSERT_TRUE(client_->ListLayouts(&all).ok());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].handle, layout_.handle);
  EXPECT_EQ(all[0].hash_hex, layout_.hash_hex);
  EXPECT_EQ(all[0].name, "opaque");
}

TEST_P(ClientPlanes, RegionSetsCanBeLentAndReturnedManyTimes) {
  for (int i = 0; i < 40; ++i) {
    uint32_t set = 0;
    const Status status =
        client_->LendPages(layout_, memory_.data(), memory_.size(), kValueBytes, &set);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_LE(set, 2u);
    ASSERT_TRUE(client_->Unlend(set).ok());
  }
}

class ClientWire : public ClientPlanes {};
INSTANTIATE_TEST_SUITE_P(Planes, ClientWire, testing::Values(DataPlane::kShm, DataPlane::kUcx),
                         [](const auto& plane) { return NameOf(plane.param); });

TEST_P(ClientWire, HostileRepliesHarmNobody) {
  Fill(0, 1);
  Put("key", 0);
  const std::vector<uint8_t> before(memory_.begin() + 2 * kValueBytes, memory_.end());
  for (const uint32_t bytes : {1u, uint32_t{kValueBytes} - 1, uint32_t{kValueBytes} + 1, ~0u}) {
    daemon_->Set({.value_bytes = bytes});
    EXPECT_EQ(Get("key", 1).code, Code::kCorrupt) << bytes;
  }
  daemon_->Set({.extra_block = true});
  EXPECT_EQ(Get("key", 1).code, Code::kCorrupt);
  daemon_->Set({.twice = true});  // the second one is dropped
  EXPECT_EQ(Get("key", 1).code, Code::kOk);
  daemon_->Set({.wrong_id = true});
  RequestOptions soon;
  soon.deadline_ms = 100;
  EXPECT_EQ(Get("key", 1, soon).code, Code::kTimeout);
  daemon_->Set({});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), memory_.begin() + 2 * kValueBytes));
  EXPECT_EQ(Get("other", 2).code, Code::kMiss);
}

TEST_P(ClientPlanes, ACancelledRequestCompletesOnce) {
  daemon_->Set({.hold = true});
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitGet(layout_, set_, {At("k", 1), At("l", 2)}, {}, &ticket).ok());
  ASSERT_TRUE(Until([this] { return daemon_->held() > 0; }));
  ASSERT_TRUE(client_->Cancel(ticket).ok());
  const Completion done = Wait(ticket);
  EXPECT_EQ(done.code, Code::kCancelled);
  EXPECT_FALSE(client_->SlotIsOwned(set_, 1));
  daemon_->Set({});
  std::vector<Completion> more;
  client_->Drain(50, &more);
  EXPECT_TRUE(more.empty());
  EXPECT_TRUE(client_->Unlend(set_).ok());
}

TEST_P(ClientPlanes, ManyCallsThatWaitForTheirTurnAreCancelledToo) {
  daemon_->Set({.hold = true});
  std::vector<Block> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(At("k", 1));
  Ticket ticket = 0;
  ASSERT_TRUE(client_->SubmitGet(layout_, set_, blocks, {}, &ticket).ok() ||
              GetParam() == DataPlane::kShm);  // 200 values of 3 MiB never fit its area
  if (ticket == 0) return;
  ASSERT_TRUE(client_->Cancel(ticket).ok());
  EXPECT_EQ(Wait(ticket).code, Code::kCancelled);
  daemon_->Set({});
}

TEST_P(ClientWire, RepliesThatDoNotParseAreALoss) {
  Put("key", 0);
  daemon_->Set({.garbage_replies = true});
  EXPECT_EQ(Get("key", 1).code, Code::kUnavailable);
  EXPECT_FALSE(client_->connected());
  daemon_->Set({});
  ASSERT_TRUE(Until([this] { return client_->Reconnect().ok(); }, 3.0));
  EXPECT_EQ(Get("key", 1).code, Code::kOk);
}

TEST(ClientConnect, AutoTakesWhatTheDaemonOffers) {
  char path[] = "/tmp/crumb-client-XXXXXX";
  ASSERT_NE(::mkdtemp(path), nullptr);
  const std::string socket = std::string(path) + "/s";
  Options options;
  options.server = "unix:" + socket;
  std::unique_ptr<Client> client;
  {
    const auto daemon = FakeDaemon::Start({.socket = socket, .ucx = false, .uds = false});
    ASSERT_TRUE(Client::Connect(options, &client).ok());
    EXPECT_EQ(client->data_plane(), "grpc");
    client.reset();
    options.data_plane = DataPlane::kUcx;
    EXPECT_THAT(Client::Connect(options, &client).message, HasSubstr("no UCX"));
    options.data_plane = DataPlane::kAuto;
  }
  {
    const auto daemon = FakeDaemon::Start({.socket = socket, .uds = false});
    ASSERT_TRUE(Client::Connect(options, &client).ok());
    EXPECT_THAT(client->data_plane(), HasSubstr("ucx"));
    client.reset();
    options.auto_ucx = false;
    ASSERT_TRUE(Client::Connect(options, &client).ok());
    EXPECT_EQ(client->data_plane(), "grpc");
    client.reset();
    options.auto_ucx = true;
    options.data_plane = DataPlane::kShm;
    EXPECT_THAT(Client::Connect(options, &client).message, HasSubstr("no data socket"));
    options.data_plane = DataPlane::kAuto;
  }
  {
    const auto daemon = FakeDaemon::Start({.socket = socket});
    ASSERT_TRUE(Client::Connect(options, &client).ok());
    EXPECT_EQ(client->data_plane(), "shm " + socket + ".data");
    client.reset();
  }
  {
    const auto daemon =
        FakeDaemon::Start({.socket = socket, .ucx = false, .uds = false, .wire_version = 9});
    const Status status = Client::Connect(options, &client);
    EXPECT_THAT(status.message, HasSubstr("wire version 9"));
    EXPECT_EQ(client, nullptr);
  }
  std::filesystem::remove_all(path);
}

TEST(ClientConnect, NobodyThereIsSaidAtOnce) {
  Options options;
  options.server = "unix:/nonexistent/crumbd.sock";
  std::unique_ptr<Client> client;
  const auto start = Clock::now();
  const Status status = Client::Connect(options, &client);
  EXPECT_EQ(status.code, Code::kUnavailable);
  EXPECT_THAT(status.message, HasSubstr("/nonexistent/crumbd.sock"));
  EXPECT_LT(Seconds(start), 2.0);
  options.server = "no port";
  EXPECT_EQ(Client::Connect(options, &client).code, Code::kInvalid);
  options.server = "unix:/x";
  options.requests_in_flight_max = 0;
  EXPECT_THAT(Client::Connect(options, &client).message, HasSubstr("requests_in_flight_max"));
  options.requests_in_flight_max = 1;
  options.token_file = "/nonexistent/token";
  EXPECT_THAT(Client::Connect(options, &client).message, HasSubstr("/nonexistent/token"));
}

}  // namespace
}  // namespace crumb::client
