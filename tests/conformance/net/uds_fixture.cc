// The fixture's parts; see the header.
#include "tests/conformance/net/uds_fixture.h"

#include <poll.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cachesvc/base/bytes.h"

namespace crumb {

void UdsTest::Start(const UdsOptions& options) {
  auto made = UdsTransport::Create(options);
  ASSERT_TRUE(made.ok()) << made.status();
  server_ = *std::move(made);
  const absl::Status listening = server_->Listen(path());
  ASSERT_TRUE(listening.ok()) << listening;
}

UdsTest::Client UdsTest::ConnectOnly() {
  Client client;
  auto made = UdsTransport::Create({.peers_max = 2, .transfers_max = 2});
  EXPECT_TRUE(made.ok()) << made.status();
  client.transport = *std::move(made);
  auto daemon = client.transport->Connect(path());
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  client.daemon = *daemon;
  EXPECT_EQ(client.transport->Send(client.daemon, AsBytes("hello")), BlockResult::kOk);
  const PeerId before = server_->newest_peer();
  EXPECT_TRUE(Until([&] { return server_->newest_peer() != before; }));
  client.peer = server_->newest_peer();
  EXPECT_TRUE(Until([&] { return !messages_[client.peer.value].empty(); }));
  return client;
}

absl::StatusOr<Region> UdsTest::Lend(Client* client, const SharedRange& range) {
  absl::StatusOr<Region> region = absl::UnknownError("not run");
  std::atomic<bool> done{false};
  std::thread lender([&] {
    region = client->transport->Lend(range);
    done.store(true);
  });
  while (!done.load()) Step();
  lender.join();
  return region;
}

absl::Status UdsTest::Register(const Client& client, const Region& region) {
  CRUMB_ASSIGN(const RegionSet set, WholeRegion(region));
  return server_->RegisterRegions(client.peer, kSet, set);
}

UdsTest::Client UdsTest::Connect(const SharedMemory& memory) {
  Client client = ConnectOnly();
  absl::StatusOr<Region> region = Lend(&client, memory.range());
  EXPECT_TRUE(region.ok()) << region.status();
  if (!region.ok()) return client;
  client.region = *region;
  const absl::Status registered = Register(client, client.region);
  EXPECT_TRUE(registered.ok()) << registered;
  return client;
}

Transfer UdsTest::Whole(const Client& client, std::vector<uint8_t>* local, uint64_t token) {
  segment_ = {.region = 0,
              .address = client.region.address,
              .local_offset = 0,
              .bytes = client.region.bytes};
  return {.peer = client.peer,
          .region_set = kSet,
          .segments = {&segment_, 1},
          .local = absl::MakeSpan(*local),
          .token = token};
}

bool UdsTest::Served(const Client& client, const SharedMemory& memory) {
  std::vector<uint8_t> local(memory.bytes().size(), static_cast<uint8_t>(next_token_));
  const uint64_t push = next_token_++, pull = next_token_++;
  if (server_->Push(Whole(client, &local, push)) != BlockResult::kOk) return false;
  if (!Until([&] { return done_.contains(push); })) return false;
  if (std::memcmp(memory.bytes().data(), local.data(), local.size()) != 0) return false;
  memory.bytes()[0] = 0x77;
  if (server_->Pull(Whole(client, &local, pull)) != BlockResult::kOk) return false;
  if (!Until([&] { return done_.contains(pull); })) return false;
  return done_[push] == BlockResult::kOk && done_[pull] == BlockResult::kOk && local[0] == 0x77;
}

void UdsTest::Step() {
  NetEvent events[64];
  const size_t count = server_->Poll(absl::MakeSpan(events));
  for (size_t i = 0; i < count; ++i) {
    const NetEvent& event = events[i];
    const Bytes text = event.message;
    switch (event.kind) {
      case NetEventKind::kMessage:
        messages_[event.peer.value].emplace_back(reinterpret_cast<const char*>(text.data()),
                                                 text.size());
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

void UdsTest::Doze() {
  if (!server_->Arm()) return;
  pollfd wait = {.fd = server_->wake_fd(), .events = POLLIN, .revents = 0};
  poll(&wait, 1, 1);
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

size_t MappingsOfTests() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  size_t count = 0;
  while (std::getline(maps, line)) count += line.find("crumb-test") != std::string::npos ? 1 : 0;
  return count;
}

}  // namespace crumb
