// The link over unix sockets. A client says one word when it connects, as any real one does; the
// server's event for it is taken here. One thread.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "cachesvc/base/bytes.h"
#include "tests/conformance/net/shared_memory.h"
#include "tests/conformance/net/transport_link.h"

namespace crumb {
namespace {

class UdsLink : public TransportLink {
 public:
  UdsLink(SharedKind kind, const LinkLimits& limits) : kind_(kind) {
    auto made = UdsTransport::Create({.transfers_max = limits.transfers_max,
                                      .transfers_per_peer_max = limits.transfers_per_peer_max,
                                      .messages_max = limits.messages_max});
    EXPECT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
    const absl::Status listening = server_->Listen(folder_.path("data"));
    EXPECT_TRUE(listening.ok()) << listening;
  }

  Transport& server() override { return *server_; }
  NetStats stats() override { return server_->stats(); }

  size_t AddClient(size_t memory_bytes) override {
    auto client = std::make_unique<Client>(memory_bytes, kind_);
    auto made = UdsTransport::Create({.peers_max = 4, .transfers_max = 16});
    EXPECT_TRUE(made.ok()) << made.status();
    client->transport = *std::move(made);
    auto daemon = client->transport->Connect(folder_.path("data"));
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    client->daemon = *daemon;
    EXPECT_EQ(client->transport->Send(client->daemon, AsBytes("word")), BlockResult::kOk);
    const PeerId before = server_->newest_peer();
    std::array<NetEvent, 1> event;
    size_t count = 0;
    for (int i = 0; i < 100 && count == 0; ++i) count = server_->Poll(absl::MakeSpan(event));
    EXPECT_EQ(count, 1u);
    EXPECT_NE(server_->newest_peer(), before);
    client->peer = server_->newest_peer();
    Lend(client.get());
    clients_.push_back(std::move(client));
    return clients_.size() - 1;
  }
  PeerId peer(size_t client) override { return clients_[client]->peer; }
  MutableBytes memory(size_t client) override { return clients_[client]->memory.bytes(); }
  Region region(size_t client) override { return clients_[client]->region; }
  BlockResult ClientSend(size_t client, Bytes message) override {
    Client& c = *clients_[client];
    return c.transport->Send(c.daemon, message);
  }
  std::vector<std::string>& received(size_t client) override { return clients_[client]->received; }
  void Kill(size_t client) override { clients_[client]->transport.reset(); }
  void StepClients() override {
    for (auto& client : clients_) {
      if (client->transport == nullptr) continue;
      std::array<NetEvent, 32> events;
      const size_t count = client->transport->Poll(absl::MakeSpan(events));
      for (size_t i = 0; i < count; ++i) {
        if (events[i].kind != NetEventKind::kMessage) continue;
        const Bytes text = events[i].message;
        client->received.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
      }
    }
  }

 private:
  struct Client {
    Client(size_t bytes, SharedKind kind) : memory(bytes, kind) {}
    SharedMemory memory;
    std::vector<std::string> received;
    std::unique_ptr<UdsTransport> transport;
    Region region;
    PeerId peer;    // at the server
    PeerId daemon;  // at the client
  };

  // Lend waits for the server, which is turned here meanwhile.
  void Lend(Client* client) {
    std::atomic<bool> done{false};
    std::thread lender([&] {
      absl::StatusOr<Region> region = client->transport->Lend(client->memory.range());
      EXPECT_TRUE(region.ok()) << region.status();
      if (region.ok()) client->region = *std::move(region);
      done.store(true);
    });
    while (!done.load()) (void)server_->Poll({});
    lender.join();
  }

  const SharedKind kind_;
  SocketFolder folder_;
  std::unique_ptr<UdsTransport> server_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

std::unique_ptr<TransportLink> MakeUdsLink(const std::string& name, const LinkLimits& limits) {
  return std::make_unique<UdsLink>(name == "uds:file" ? SharedKind::kFile : SharedKind::kSealed,
                                   limits);
}

}  // namespace crumb
