// Connections and mappings of the data socket over their life: taken back, held, closed, flooded,
// slow, silent, too many, and a thousand in a row.
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "cachesvc/base/bytes.h"
#include "tests/conformance/net/uds_fixture.h"

namespace crumb {
namespace {

constexpr size_t kBytes = 64 * 1024;
using UdsLife = UdsTest;

TEST_F(UdsLife, WhatIsTakenBackIsUnmappedAndNoLongerServed) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed);
  const size_t mappings = MappingsOfTests();
  Client client = Connect(memory);
  EXPECT_EQ(MappingsOfTests(), mappings + 1);
  const auto half = Lend(
      &client,
      {.fd = memory.fd(), .offset = 4096, .bytes = 4096, .address = memory.range().address + 4096});
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(server_->uds_stats().files_mapped, 1u) << "one file, sent once";
  client.transport->Unlend(*half);
  EXPECT_TRUE(Served(client, memory));
  client.transport->Unlend(client.region);
  ASSERT_TRUE(Until([&] { return server_->uds_stats().files_mapped == 0; }));
  ASSERT_TRUE(Until([&] { return MappingsOfTests() == mappings; }));
  std::vector<uint8_t> local(kBytes);
  EXPECT_EQ(server_->Pull(Whole(client, &local, 1)), BlockResult::kInvalid);
  // Lent again it is another file to the daemon.
  const auto again = Lend(&client, memory.range());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(server_->Pull(Whole(client, &local, 1)), BlockResult::kInvalid);
  client.region = *again;
  ASSERT_TRUE(Register(client, *again).ok());
  EXPECT_TRUE(Served(client, memory));
}

TEST_F(UdsLife, HeldMemoryStaysMappedWhateverBecomesOfItsPeer) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed);
  std::memset(memory.bytes().data(), 9, kBytes);
  const size_t mappings = MappingsOfTests();
  std::vector<uint8_t> local(kBytes);
  for (const bool killed : {true, false}) {
    Client client = Connect(memory);
    MappedHold hold;
    ASSERT_EQ(server_->Hold(Whole(client, &local, 0), MappedUse::kRead, &hold), BlockResult::kOk);
    EXPECT_TRUE(hold.steady);
    ASSERT_EQ(hold.pieces.size(), 1u);
    client.transport.reset();
    if (!killed) server_->ClosePeer(client.peer);
    ASSERT_TRUE(Until([&] { return server_->stats().peers == 0; }));
    EXPECT_EQ(server_->stats().peers_closing, 1u);
    EXPECT_EQ(MappingsOfTests(), mappings + 1);
    EXPECT_EQ(hold.pieces[0].data[kBytes - 1], 9);
    EXPECT_FALSE(downs_.contains(client.peer.value)) << "before its transfers have ended";
    EXPECT_FALSE(server_->Release(&hold, MappedUse::kRead, kBytes));
    ASSERT_TRUE(Until([&] { return server_->stats().peers_closing == 0; }));
    EXPECT_EQ(downs_.contains(client.peer.value), killed);
    ASSERT_TRUE(Until([&] { return MappingsOfTests() == mappings; }));
  }
  EXPECT_EQ(server_->uds_stats().holds_outlived, 2u);
  EXPECT_EQ(server_->uds_stats().holds, 0u);
}

TEST_F(UdsLife, ASlowReaderFillsItsOwnQueueAlone) {
  Start({.sends_per_peer_max = 16});
  SharedMemory memory(kBytes, SharedKind::kSealed), other(kBytes, SharedKind::kSealed);
  const Client slow = Connect(memory), quick = Connect(other);
  const std::string text(20'000, 'x');
  size_t sent = 0;
  BlockResult last = BlockResult::kOk;
  while (sent < 10'000 && last == BlockResult::kOk) {
    last = server_->Send(slow.peer, AsBytes(std::to_string(sent) + " " + text));
    if (last == BlockResult::kOk) ++sent;
  }
  EXPECT_EQ(last, BlockResult::kBusy);
  EXPECT_EQ(server_->Send(quick.peer, AsBytes("hi")), BlockResult::kOk);
  EXPECT_TRUE(Served(quick, other));
  EXPECT_TRUE(Served(slow, memory));
  size_t got = 0;
  ASSERT_TRUE(Until([&] {
    NetEvent events[8];
    const size_t count = slow.transport->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      const std::string head(reinterpret_cast<const char*>(events[i].message.data()), 8);
      EXPECT_EQ(head.substr(0, head.find(' ')), std::to_string(got));
      ++got;
    }
    return got == sent;
  }));
  EXPECT_EQ(server_->stats().messages_held, 0u);
}

TEST_F(UdsLife, AFloodWaitsInItsSocket) {
  Start({.messages_max = 64, .messages_per_peer_max = 8});
  Client flood = ConnectOnly();
  const Client other = ConnectOnly();
  size_t sent = 0;
  while (sent < 5000 &&
         flood.transport->Send(flood.daemon, AsBytes(std::to_string(sent))) == BlockResult::kOk) {
    ++sent;
  }
  ASSERT_GT(sent, 100u);
  (void)server_->Poll({});
  EXPECT_LE(server_->stats().messages_held, 8u);
  ASSERT_EQ(other.transport->Send(other.daemon, AsBytes("me")), BlockResult::kOk);
  ASSERT_TRUE(Until([&] { return messages_[other.peer.value].size() == 2; }));
  std::vector<std::string>& got = messages_[flood.peer.value];
  ASSERT_TRUE(Until([&] {
    (void)flood.transport->Poll({});
    return got.size() == sent + 1;
  }));
  for (size_t i = 0; i < sent; ++i) ASSERT_EQ(got[i + 1], std::to_string(i));
}

TEST_F(UdsLife, AThousandConnectionsLeaveNothing) {
  Start({.peers_max = 8});
  SharedMemory memory(kBytes, SharedKind::kSealed);
  const size_t mappings = MappingsOfTests();
  { const Client first = Connect(memory); }
  ASSERT_TRUE(Until([&] { return server_->stats().peers == 0; }));
  ASSERT_TRUE(Until([&] { return MappingsOfTests() == mappings; })) << "a pool thread unmaps";
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) {
    const Client client = Connect(memory);
    ASSERT_NE(client.peer.value, 0u);
  }
  ASSERT_TRUE(Until([&] { return server_->stats().peers == 0; }));
  ASSERT_TRUE(Until([&] { return MappingsOfTests() == mappings; }));
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(server_->stats().peers_lost, 1001u);
}

TEST_F(UdsLife, MoreConnectionsThanThereIsRoomForAreEnded) {
  Start({.peers_max = 3});
  SharedMemory memory(kBytes, SharedKind::kSealed);
  const Client honest = Connect(memory);
  std::vector<std::unique_ptr<UdsRawPeer>> crowd;
  for (int i = 0; i < 20; ++i) crowd.push_back(std::make_unique<UdsRawPeer>(path()));
  ASSERT_TRUE(Until([&] { return server_->stats().peers_refused == 18; }));
  EXPECT_EQ(server_->stats().peers, 3u);
  EXPECT_TRUE(Served(honest, memory));
  crowd.clear();
  ASSERT_TRUE(Until([&] { return server_->stats().peers == 1; }));
}

TEST_F(UdsLife, APeerThatSaysNothingIsEnded) {
  Start({.first_word_us = 20'000});
  SharedMemory memory(kBytes, SharedKind::kSealed);
  const Client honest = Connect(memory);
  UdsRawPeer silent(path()), another(path());
  ASSERT_TRUE(Until([&] { return server_->stats().peers == 3; }));
  ASSERT_TRUE(Until([&] { return silent.closed() && another.closed(); }));
  EXPECT_EQ(server_->stats().peers, 1u);
  EXPECT_TRUE(Served(honest, memory));
}

TEST_F(UdsLife, PathsAreCheckedAndPrivate) {
  Start();
  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto second = UdsTransport::Create({});
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE((*second)->Listen(path()).ok()) << "it is taken";
  EXPECT_EQ((*second)->Listen(std::string(200, 'x')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*second)->Connect(folder_.path("none")).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE((*second)->Connect(path()).ok());
  EXPECT_EQ((*second)->Connect(path()).status().code(), absl::StatusCode::kFailedPrecondition);
  const PeerId before = server_->newest_peer();
  ASSERT_TRUE(Until([&] { return server_->newest_peer() != before; }));
  EXPECT_EQ(server_->peer_info(server_->newest_peer()).pid, getpid());
  EXPECT_EQ(server_->peer_info(server_->newest_peer()).uid, geteuid());
  server_.reset();
  EXPECT_NE(stat(path().c_str(), &info), 0) << "the socket goes with its owner";
}

TEST_F(UdsLife, LendSaysWhyItFails) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed);
  Client client = ConnectOnly();
  SharedRange range = memory.range();
  range.bytes = kBytes + 1;
  EXPECT_EQ(Lend(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  range.bytes = 0;
  EXPECT_EQ(Lend(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  range = memory.range();
  range.offset = UINT64_MAX;
  EXPECT_EQ(Lend(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  range = memory.range();
  range.address = UINT64_MAX - 1;
  EXPECT_EQ(Lend(&client, range).status().code(), absl::StatusCode::kInvalidArgument);
  range.fd = -1;
  EXPECT_FALSE(Lend(&client, range).ok());
  EXPECT_TRUE(Lend(&client, memory.range()).ok()) << "and is none the worse for it";
  server_->ClosePeer(client.peer);
  EXPECT_EQ(Lend(&client, memory.range()).status().code(), absl::StatusCode::kOk)
      << "the other side has this file already";
  SharedMemory more(kBytes, SharedKind::kSealed);
  EXPECT_EQ(Lend(&client, more.range()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace crumb
