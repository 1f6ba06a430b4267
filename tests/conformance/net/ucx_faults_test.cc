// What damaged blobs, strangers, floods and sleepers can do to a UcxTransport: nothing to others.
// One process, one thread; waits only by polling a bounded number of times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/ucx_ids.h"
#include "cachesvc/net/ucx_transport.h"
#include "tests/conformance/net/ucx_raw_peer.h"
#include "tests/conformance/net/whole_region.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<UcxTransport> Make(UcxOptions options) {
  auto made = UcxTransport::Create(options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

Bytes CookieBytes(const uint64_t& cookie) {
  return {reinterpret_cast<const uint8_t*>(&cookie), sizeof(cookie)};
}

// A server under test, honest clients, and pollers for them.
class UcxFaults : public ::testing::TestWithParam<std::string> {
 protected:
  struct Client {
    std::unique_ptr<UcxTransport> transport;
    std::vector<uint8_t> memory;
    Region region;
    PeerId peer;    // at the server
    PeerId server;  // at the client
    bool stepping = true;
    std::vector<std::string> received;
  };

  UcxOptions Options() {
    UcxOptions options;
    options.tls = GetParam();
    options.keepalive_us = 20'000;
    options.peers_max = 8;
    return options;
  }
  void Start() { server_ = Make(Options()); }
  void Start(const UcxOptions& options) { server_ = Make(options); }

  Client& AddClient(size_t bytes = 256 * 1024) {
    auto client = std::make_unique<Client>();
    UcxOptions options = Options();
    client->transport = Make(options);
    client->memory.resize(bytes);
    for (uint8_t& byte : client->memory) byte = static_cast<uint8_t>(rng_.Next());
    client->region = *client->transport->Lend(absl::MakeSpan(client->memory));
    uint64_t mine = 0, theirs = 0;
    const std::string up = client->transport->MakeHello(&mine);
    const std::string down = server_->MakeHello(&theirs);
    client->peer = *server_->Connect(AsBytes(up), theirs);
    client->server = *client->transport->Connect(AsBytes(down), mine);
    const auto set = WholeRegion(client->region);
    EXPECT_TRUE(server_->RegisterRegions(client->peer, 1, *set).ok());
    clients_.push_back(std::move(client));
    return *clients_.back();
  }
  std::unique_ptr<UcxRawPeer> AddRaw(uint64_t* cookie, PeerId* peer) {
    auto raw = UcxRawPeer::Create(GetParam());
    uint64_t mine = 0;
    const std::string down = server_->MakeHello(&mine);
    *peer = *server_->Connect(AsBytes(raw->Hello(99)), mine);
    *cookie = raw->Connect(AsBytes(down));
    return raw;
  }

  void Step(UcxRawPeer* raw = nullptr) {
    for (auto& client : clients_) {
      NetEvent events[32];
      if (client->transport == nullptr || !client->stepping) continue;
      const size_t count = client->transport->Poll(absl::MakeSpan(events));
      for (size_t i = 0; i < count; ++i) {
        if (events[i].kind != NetEventKind::kMessage) continue;
        client->received.emplace_back(reinterpret_cast<const char*>(events[i].message.data()),
                                      events[i].message.size());
      }
    }
    if (raw != nullptr) raw->Progress();
    NetEvent events[64];
    const size_t count = server_->Poll(absl::MakeSpan(events).first(event_budget_));
    for (size_t i = 0; i < count; ++i) {
      if (events[i].kind == NetEventKind::kMessage) ++messages_[events[i].peer.value];
      if (events[i].kind == NetEventKind::kTransferDone) done_[events[i].token] = events[i].result;
      if (events[i].kind == NetEventKind::kPeerDown) ++downs_[events[i].peer.value];
    }
  }
  template <typename Predicate>
  [[nodiscard]] bool Pump(Predicate until, UcxRawPeer* raw = nullptr) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (until()) return true;
      Step(raw);
    }
    return until();
  }
  BlockResult Pull(const Client& client, std::vector<uint8_t>* local, uint64_t token) {
    segment_ = {
        .region = 0, .address = client.region.address, .local_offset = 0, .bytes = local->size()};
    return server_->Pull({.peer = client.peer,
                          .region_set = 1,
                          .segments = {&segment_, 1},
                          .local = absl::MakeSpan(*local),
                          .token = token});
  }
  void ExpectServed(const Client& client) {
    std::vector<uint8_t> local(client.memory.size());
    const uint64_t token = next_token_++;
    ASSERT_EQ(Pull(client, &local, token), BlockResult::kOk);
    ASSERT_TRUE(Pump([&] { return done_.contains(token); }));
    ASSERT_EQ(done_[token], BlockResult::kOk);
    ASSERT_EQ(local, client.memory);
  }

  std::unique_ptr<UcxTransport> server_;
  std::vector<std::unique_ptr<Client>> clients_;
  Rng rng_{3};
  Segment segment_;
  size_t event_budget_ = 64;
  uint64_t next_token_ = 1'000'000;
  std::map<uint64_t, int> messages_, downs_;  // by peer
  std::map<uint64_t, BlockResult> done_;      // by token
};

TEST_P(UcxFaults, ADamagedHelloIsRefusedBeforeUcxSeesIt) {
  Start();
  auto other = Make(Options());
  uint64_t theirs = 0;
  const std::string hello = other->MakeHello(&theirs);
  ASSERT_LT(hello.size(), kHelloBytesMax);
  uint64_t cookie = 0;
  server_->MakeHello(&cookie);
  const auto refused = [&](const std::string& blob) {
    const auto peer = server_->Connect(AsBytes(blob), cookie);
    return !peer.ok() && peer.status().code() == absl::StatusCode::kInvalidArgument;
  };
  for (size_t size = 0; size < hello.size(); ++size) {
    ASSERT_TRUE(refused(hello.substr(0, size))) << size;
  }
  for (size_t bit = 0; bit < hello.size() * 8; ++bit) {
    std::string blob = hello;
    blob[bit / 8] = static_cast<char>(blob[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(refused(blob)) << "bit " << bit;
  }
  for (int i = 0; i < 500; ++i) {
    std::string blob = hello;
    for (uint64_t n = 1 + rng_.Below(8); n > 0; --n) {
      blob[rng_.Below(blob.size())] = static_cast<char>(rng_.Next());
    }
    if (i % 2 == 0) blob.append(1 + rng_.Below(100), static_cast<char>(rng_.Next()));
    ASSERT_TRUE(blob == hello || refused(blob));
  }
  EXPECT_TRUE(refused(std::string(kHelloBytesMax + 1, 'x')));
  HelloFrame frame = *ParseHello(AsBytes(hello));
  frame.queue_slots *= 2;  // whole, but of a side that would write past our queue
  EXPECT_TRUE(refused(EncodeHello(frame)));
  EXPECT_FALSE(refused(hello)) << "a refused blob used the cookie up";
  EXPECT_EQ(server_->stats().peers, 1u);
  ExpectServed(AddClient());
}

TEST_P(UcxFaults, ADamagedRkeyIsRefusedBeforeUcxSeesIt) {
  Start();
  Client& client = AddClient(4096);
  const auto refused = [&](const Region& region) {
    const auto set = WholeRegion(region);
    if (!set.ok()) return true;
    return server_->RegisterRegions(client.peer, 2, *set).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  const std::string rkey = client.region.rkey;
  Region region = client.region;
  for (size_t size = 0; size < rkey.size(); ++size) {
    region.rkey = rkey.substr(0, size);
    ASSERT_TRUE(refused(region)) << size;
  }
  for (size_t bit = 0; bit < rkey.size() * 8; ++bit) {
    region.rkey = rkey;
    region.rkey[bit / 8] = static_cast<char>(rkey[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(refused(region)) << "bit " << bit;
  }
  // A good key for other memory than the region names.
  for (const auto& [address, bytes] :
       {std::pair<uint64_t, uint64_t>{client.region.address + 1, 4096},
        {client.region.address - 1, 4096},
        {client.region.address, 4097},
        {client.region.address + 4096, 1},
        {8, 16}}) {
    EXPECT_TRUE(refused({.address = address, .bytes = bytes, .rkey = rkey}));
  }
  EXPECT_FALSE(refused({.address = client.region.address + 16, .bytes = 100, .rkey = rkey}));
  ExpectServed(client);
}

TEST_P(UcxFaults, CookiesAreFreshAndPeersAreCounted) {
  Start();
  auto other = Make(Options());
  uint64_t theirs = 0, mine = 0;
  const std::string hello = other->MakeHello(&theirs);
  EXPECT_FALSE(server_->Connect(AsBytes(hello), 0).ok());
  EXPECT_FALSE(server_->Connect(AsBytes(hello), 12345).ok());
  server_->MakeHello(&mine);
  EXPECT_TRUE(server_->Connect(AsBytes(hello), mine).ok());
  EXPECT_FALSE(server_->Connect(AsBytes(hello), mine).ok());
  for (uint32_t i = 1; i < Options().peers_max; ++i) {
    EXPECT_FALSE(server_->MakeHello(&mine).empty());
    EXPECT_TRUE(server_->Connect(AsBytes(hello), mine).ok());
  }
  EXPECT_TRUE(server_->MakeHello(&mine).empty());
  EXPECT_EQ(server_->Connect(AsBytes(hello), mine).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Clients that ask for a hello and never come back: the oldest hello gives way.
TEST_P(UcxFaults, UnusedHellosAreBounded) {
  UcxOptions options = Options();
  options.peers_max = 24;
  Start(options);
  uint64_t first = 0, last = 0;
  server_->MakeHello(&first);
  for (int i = 0; i < 40; ++i) ASSERT_FALSE(server_->MakeHello(&last).empty());
  auto other = Make(Options());
  uint64_t theirs = 0;
  const std::string hello = other->MakeHello(&theirs);
  EXPECT_FALSE(server_->Connect(AsBytes(hello), first).ok());
  EXPECT_TRUE(server_->Connect(AsBytes(hello), last).ok());
}

// Every header and body length, known and unknown cookies and ids, from a peer and a stranger.
TEST_P(UcxFaults, GarbageMessagesAreDroppedAndCounted) {
  Start();
  Client& honest = AddClient();
  ExpectServed(honest);
  uint64_t cookie = 0;
  PeerId peer;
  auto raw = AddRaw(&cookie, &peer);
  const std::string noise(kWireMessageBytesMax * 2, 'n');
  const auto body = [&](uint64_t own, size_t bytes) {
    return std::string(reinterpret_cast<const char*>(&own), sizeof(own)) + noise.substr(0, bytes);
  };
  int sent = 0;
  const auto send = [&](unsigned id, Bytes header, const std::string& text) {
    raw->Send(id, header, AsBytes(text), RawProtocol::kEager);
    ++sent;
  };
  for (size_t header = 1; header <= 40; ++header) {  // no message has a header
    send(kUcxMessage, AsBytes(noise).first(header), body(cookie, rng_.Below(3000)));
    send(kUcxGoodbye, AsBytes(noise).first(header), body(cookie, 0));
  }
  for (size_t bytes = 0; bytes < 9; ++bytes) send(kUcxMessage, {}, noise.substr(0, bytes));
  for (size_t bytes : {0, 1, 63, 64, 4000, 9000, 70000, 131072, 131073, 262144}) {
    send(kUcxMessage, {}, body(rng_.Next(), bytes));
    send(kUcxGoodbye, {}, body(rng_.Next(), bytes));
  }
  for (unsigned id : {0, 3, 4, 255, 256, 4096, 32767, 32768, 65534, 65535}) {
    send(id, {}, body(cookie, 10));
    send(id, AsBytes(noise).first(9), body(cookie, 10000));
  }
  // Its own cookie: a body that is too long or empty is dropped, the rest arrives.
  send(kUcxMessage, {}, body(cookie, 0));
  send(kUcxMessage, {}, body(cookie, kWireMessageBytesMax + 1));
  raw->Send(kUcxMessage, {}, AsBytes(body(cookie, kWireMessageBytesMax)), RawProtocol::kEager);
  ASSERT_TRUE(Pump([&] { return messages_[peer.value] == 1; }, raw.get()));
  EXPECT_EQ(server_->stats().messages_dropped, static_cast<uint64_t>(sent));
  EXPECT_EQ(server_->stats().peers, 2u);
  EXPECT_TRUE(downs_.empty());
  ExpectServed(honest);
  // Malformed again and again: that peer is closed, the other is not.
  for (int i = 0; i < 20; ++i) send(kUcxMessage, {}, body(cookie, 0));
  ASSERT_TRUE(Pump([&] { return downs_.contains(peer.value); }, raw.get()));
  EXPECT_EQ(server_->stats().peers_refused, 1u);
  EXPECT_EQ(server_->stats().peers, 1u);
  ExpectServed(honest);
}

// Data of a rendezvous message that is dropped in the callback would look delivered to its sender.
TEST_P(UcxFaults, ARendezvousMessageIsRefusedAndItsSenderKnows) {
  Start();
  Client& honest = AddClient();
  uint64_t cookie = 0;
  PeerId peer;
  auto raw = AddRaw(&cookie, &peer);
  std::string noise(1 << 20, 'n');
  std::memcpy(noise.data(), &cookie, sizeof(cookie));
  raw->Send(kUcxMessage, {}, AsBytes(noise).first(1000), RawProtocol::kRendezvous);
  raw->Send(kUcxMessage, {}, AsBytes(noise), RawProtocol::kRendezvous);
  raw->Send(kUcxMessage, CookieBytes(cookie), AsBytes(noise), RawProtocol::kRendezvous);
  raw->Send(kUcxGoodbye, {}, AsBytes(noise), RawProtocol::kRendezvous);
  ASSERT_TRUE(Pump([&] { return raw->done() == 4; }, raw.get()));
  EXPECT_EQ(raw->failed(), 4);
  EXPECT_EQ(messages_[peer.value], 0);
  EXPECT_EQ(server_->stats().messages_held, 0u);
  ExpectServed(honest);
}

TEST_P(UcxFaults, AFloodIsClosedAndStaysWithinItsBound) {
  UcxOptions options = Options();
  options.messages_max = 512;
  options.messages_per_peer_max = 64;
  Start(options);
  Client& honest = AddClient();
  ExpectServed(honest);
  uint64_t cookie = 0;
  PeerId peer;
  auto raw = AddRaw(&cookie, &peer);
  event_budget_ = 0;  // the owner is busy elsewhere and takes no event
  std::string text(500, 'f');
  std::memcpy(text.data(), &cookie, sizeof(cookie));
  uint32_t held_max = 0;
  for (int i = 0; i < 5000; ++i) {
    raw->Send(kUcxMessage, {}, AsBytes(text), RawProtocol::kEager);
    Step(raw.get());
    held_max = std::max(held_max, server_->stats().messages_held);
  }
  EXPECT_LE(held_max, 64u);
  EXPECT_GE(held_max, 60u);
  event_budget_ = 64;
  ASSERT_TRUE(Pump([&] { return downs_.contains(peer.value); }, raw.get()));
  EXPECT_EQ(server_->stats().peers_refused, 1u);
  ExpectServed(honest);
}

// Many peers within their own bounds but together above the transport's: the network holds them
// back and nothing is lost.
TEST_P(UcxFaults, BackPressureLosesNothing) {
  UcxOptions options = Options();
  options.messages_max = 1024;
  options.messages_per_peer_max = 300;
  Start(options);
  for (int i = 0; i < 4; ++i) AddClient(64);
  for (auto& client : clients_) ExpectServed(*client);
  event_budget_ = 1;  // a slow owner
  uint32_t held_max = 0;
  const std::string text(700, 'm');
  int sent[4] = {};
  constexpr int kEach = 1000;
  ASSERT_TRUE(Pump([&] {
    bool all = true;
    held_max = std::max(held_max, server_->stats().messages_held);
    for (size_t c = 0; c < 4; ++c) {
      const int arrived = messages_[clients_[c]->peer.value];
      if (sent[c] < kEach && sent[c] - arrived < 280 &&
          clients_[c]->transport->Send(clients_[c]->server, AsBytes(text)) == BlockResult::kOk) {
        ++sent[c];
      }
      all = all && arrived == kEach;
    }
    return all;
  }));
  EXPECT_GE(held_max, 512u);
  EXPECT_EQ(server_->stats().messages_dropped, 0u);
  EXPECT_TRUE(downs_.empty());
}

// A peer that makes no progress (SIGSTOP, a long kernel) holds its own transfers and nobody else's.
TEST_P(UcxFaults, ASleepingPeerHoldsOnlyItself) {
  UcxOptions options = Options();
  options.transfers_max = 64;
  options.transfers_per_peer_max = 32;
  options.sends_max = 256;
  options.sends_per_peer_max = 64;
  Start(options);
  Client& sleeper = AddClient(1 << 20);
  Client& honest = AddClient();
  ExpectServed(sleeper);
  ExpectServed(honest);
  sleeper.stepping = false;
  std::vector<std::vector<uint8_t>> local(32, std::vector<uint8_t>(1 << 20));
  std::vector<Segment> segments(
      32, {.region = 0, .address = sleeper.region.address, .local_offset = 0, .bytes = 1 << 20});
  for (size_t i = 0; i < 32; ++i) {
    const Transfer transfer = {.peer = sleeper.peer,
                               .region_set = 1,
                               .segments = {&segments[i], 1},
                               .local = absl::MakeSpan(local[i]),
                               .token = i};
    ASSERT_EQ(i % 2 == 0 ? server_->Pull(transfer) : server_->Push(transfer), BlockResult::kOk);
  }
  EXPECT_EQ(Pull(sleeper, &local[0], 99), BlockResult::kBusy);
  int sends = 0;
  while (sends < 100'000 &&
         server_->Send(sleeper.peer, AsBytes(std::string(2000, 's'))) == BlockResult::kOk) {
    ++sends;
    Step();
  }
  EXPECT_LT(sends, 100'000);
  for (int i = 0; i < 20; ++i) ExpectServed(honest);
  EXPECT_GE(server_->stats().transfers_pending, 16u);
  server_->ClosePeer(sleeper.peer);
  ASSERT_TRUE(Pump([&] { return server_->stats().transfers_pending == 0; }));
  for (uint64_t i = 0; i < 32; ++i) EXPECT_TRUE(done_.contains(i)) << i;
  EXPECT_EQ(server_->stats().operations_in_flight, 0u);
  ExpectServed(honest);
  ASSERT_TRUE(Pump([&] { return server_->stats().peers_closing == 0; }));
  EXPECT_EQ(server_->stats().messages_held, 0u);
  sleeper.stepping = true;  // it wakes up to a server that is gone for it
  for (int i = 0; i < 200; ++i) Step();
  ExpectServed(honest);
}

TEST_P(UcxFaults, DestroyingTheTransportEndsEveryOperation) {
  for (int round = 0; round < 5; ++round) {
    Start();
    Client& client = AddClient(200'000);
    std::vector<std::vector<uint8_t>> local(16, std::vector<uint8_t>(200'000, 1));
    std::vector<Segment> segments(
        16, {.region = 0, .address = client.region.address, .local_offset = 0, .bytes = 200'000});
    for (size_t i = 0; i < local.size(); ++i) {
      ASSERT_EQ(server_->Pull({.peer = client.peer,
                               .region_set = 1,
                               .segments = {&segments[i], 1},
                               .local = absl::MakeSpan(local[i]),
                               .token = i}),
                BlockResult::kOk);
    }
    for (int i = 0; i < round * 20; ++i) Step();
    server_.reset();
    for (auto& buffer : local) std::fill(buffer.begin(), buffer.end(), uint8_t{0x33});
    NetEvent events[8];
    for (int i = 0; i < 300; ++i) client.transport->Poll(absl::MakeSpan(events));
    for (const auto& buffer : local) {
      ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t b) { return b == 0x33; }));
    }
    clients_.clear();
  }
}

TEST_P(UcxFaults, BadOptionsNameThemselves) {
  UcxOptions options = Options();
  options.tls = "no_such_transport";
  EXPECT_THAT(std::string(UcxTransport::Create(options).status().message()),
              HasSubstr("no_such_transport"));
  options = Options();
  options.transfers_max = 0;
  EXPECT_THAT(std::string(UcxTransport::Create(options).status().message()),
              HasSubstr("transfers_max"));
}

TEST_P(UcxFaults, DescribeNamesVersionAndTransports) {
  Start();
  const std::string text = server_->Describe();
  const std::string first = GetParam().substr(0, GetParam().find(','));
  EXPECT_THAT(text, HasSubstr("1."));
  EXPECT_THAT(text, HasSubstr(first));
}

std::string Name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ucx, UcxFaults, ::testing::Values("tcp", "posix"), Name);

}  // namespace
}  // namespace crumb
