// Links over the loopback and the UCX transport. Must never sleep: callers pump. One thread.
#include "tests/conformance/net/transport_link.h"

#include <gtest/gtest.h>

#include <utility>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/loopback_transport.h"
#include "cachesvc/net/ucx_transport.h"

namespace crumb {
namespace {

std::string ToString(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class LoopbackLink : public TransportLink {
 public:
  explicit LoopbackLink(const LinkLimits& limits)
      : transport_(LoopbackTransport::Create(limits.transfers_max)) {}

  Transport& server() override { return *transport_; }
  NetStats stats() override { return transport_->stats(); }
  size_t AddClient(size_t memory_bytes) override {
    auto client = std::make_unique<Client>();
    client->memory.resize(memory_bytes);
    client->peer = transport_->AddPeer(
        [](void* arg, Bytes message) {
          static_cast<Client*>(arg)->received.push_back(ToString(message));
        },
        client.get());
    clients_.push_back(std::move(client));
    return clients_.size() - 1;
  }
  PeerId peer(size_t client) override { return clients_[client]->peer; }
  MutableBytes memory(size_t client) override { return absl::MakeSpan(clients_[client]->memory); }
  Region region(size_t client) override {
    auto& memory = clients_[client]->memory;
    return {reinterpret_cast<uint64_t>(memory.data()), memory.size(), {}};
  }
  BlockResult ClientSend(size_t client, Bytes message) override {
    return transport_->Inject(clients_[client]->peer, message);
  }
  std::vector<std::string>& received(size_t client) override { return clients_[client]->received; }
  void Kill(size_t client) override { transport_->KillPeer(clients_[client]->peer); }
  void StepClients() override {}

 private:
  struct Client {
    std::vector<uint8_t> memory;
    std::vector<std::string> received;
    PeerId peer;
  };
  std::unique_ptr<LoopbackTransport> transport_;
  std::vector<std::unique_ptr<Client>> clients_;
};

class UcxLink : public TransportLink {
 public:
  enum class Path { kCopies, kOneSided };
  UcxLink(std::string tls, Path path, const LinkLimits& limits)
      : tls_(std::move(tls)), path_(path) {
    UcxOptions options;
    options.tls = tls_;
    options.one_sided = path == Path::kOneSided;
    options.transfers_max = limits.transfers_max;
    options.transfers_per_peer_max = limits.transfers_per_peer_max;
    options.messages_max = limits.messages_max;
    options.keepalive_us = 20'000;
    auto made = UcxTransport::Create(options);
    EXPECT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
  }

  Transport& server() override { return *server_; }
  NetStats stats() override { return server_->stats(); }
  size_t AddClient(size_t memory_bytes) override {
    auto client = std::make_unique<Client>();
    client->memory.resize(memory_bytes);
    UcxOptions options;
    options.tls = tls_;
    options.one_sided = path_ == Path::kOneSided;
    options.peers_max = 4;
    auto made = UcxTransport::Create(options);
    EXPECT_TRUE(made.ok()) << made.status();
    client->transport = *std::move(made);
    uint64_t server_cookie = 0, client_cookie = 0;
    const std::string to_server = client->transport->MakeHello(&client_cookie);
    const std::string to_client = server_->MakeHello(&server_cookie);
    auto peer = server_->Connect(AsBytes(to_server), server_cookie);
    EXPECT_TRUE(peer.ok()) << peer.status();
    client->peer = *peer;
    auto daemon = client->transport->Connect(AsBytes(to_client), client_cookie);
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    client->daemon = *daemon;
    auto region = client->transport->Lend(absl::MakeSpan(client->memory));
    EXPECT_TRUE(region.ok()) << region.status();
    client->region = *region;
    clients_.push_back(std::move(client));
    return clients_.size() - 1;
  }
  PeerId peer(size_t client) override { return clients_[client]->peer; }
  MutableBytes memory(size_t client) override { return absl::MakeSpan(clients_[client]->memory); }
  Region region(size_t client) override { return clients_[client]->region; }
  BlockResult ClientSend(size_t client, Bytes message) override {
    Client& c = *clients_[client];
    return c.transport->Send(c.daemon, message);
  }
  std::vector<std::string>& received(size_t client) override { return clients_[client]->received; }
  // In one process the other side must be polled for the client's goodbye to leave.
  void Kill(size_t client) override {
    clients_[client]->transport->ClosePeer(clients_[client]->daemon);
    clients_[client]->killed = true;
  }
  void StepClients() override {
    for (auto& client : clients_) {
      if (client->transport == nullptr) continue;
      NetEvent events[32];
      const size_t count = client->transport->Poll(absl::MakeSpan(events));
      if (client->killed && client->transport->stats().peers_closing == 0) {
        client->transport.reset();
        continue;
      }
      for (size_t i = 0; i < count; ++i) {
        if (events[i].kind != NetEventKind::kMessage) continue;
        client->received.push_back(ToString(events[i].message));
      }
    }
  }

 private:
  struct Client {
    std::vector<uint8_t> memory;
    std::vector<std::string> received;
    std::unique_ptr<UcxTransport> transport;
    Region region;
    PeerId peer;    // at the server
    PeerId daemon;  // at the client
    bool killed = false;
  };
  const std::string tls_;
  const Path path_;
  std::unique_ptr<UcxTransport> server_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

std::unique_ptr<TransportLink> MakeLink(const std::string& name, const LinkLimits& limits) {
  const std::string ucx = "ucx:", one_sided = "one_sided:";
  if (name.rfind(ucx, 0) == 0) {
    return std::make_unique<UcxLink>(name.substr(ucx.size()), UcxLink::Path::kCopies, limits);
  }
  if (name.rfind(one_sided, 0) == 0) {
    return std::make_unique<UcxLink>(name.substr(one_sided.size()), UcxLink::Path::kOneSided,
                                     limits);
  }
  if (name.rfind("uds:", 0) == 0) return MakeUdsLink(name, limits);
  return std::make_unique<LoopbackLink>(limits);
}

}  // namespace crumb
