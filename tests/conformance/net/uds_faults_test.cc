// What strangers and broken workers can do on the data socket: every frame, descriptor, file and
// key that does not add up is refused and counted, nothing of it stays, and the others are served.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "tests/conformance/net/uds_fixture.h"

namespace crumb {
namespace {

constexpr size_t kBytes = 64 * 1024;

class UdsFaults : public UdsTest {
 protected:
  // A raw peer that has said its first word.
  std::unique_ptr<UdsRawPeer> Raw() {
    auto peer = std::make_unique<UdsRawPeer>(path());
    const PeerId before = server_->newest_peer();
    EXPECT_TRUE(peer->Say("hello"));
    EXPECT_TRUE(Until([&] { return server_->newest_peer() != before; }));
    const uint64_t id = server_->newest_peer().value;
    EXPECT_TRUE(Until([&] { return !messages_[id].empty(); }));
    return peer;
  }
  // The answer to a lend: a refusal, or none.
  UdsRefusal Answer(UdsRawPeer* peer) {
    std::vector<uint8_t> packet;
    UdsFrame frame;
    EXPECT_TRUE(Until([&] { return peer->Receive(&packet); }));
    EXPECT_TRUE(ParseUdsFrame(packet, &frame));
    EXPECT_EQ(frame.kind, UdsFrameKind::kLent);
    return static_cast<UdsRefusal>(frame.value);
  }
};

TEST_F(UdsFaults, PacketsThatAreNoFramesEndTheirPeerAlone) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed), other(kBytes, SharedKind::kSealed);
  const Client honest = Connect(memory);
  const size_t descriptors = OpenDescriptors();
  const std::vector<uint8_t> junk(100, 0xab), huge(kUdsFrameBytesMax + 1, 1);
  const auto lend =
      MakeUdsFrame({.kind = UdsFrameKind::kLend, .file = 1, .value = kBytes, .message = {}});
  const auto unlend = MakeUdsFrame({.kind = UdsFrameKind::kUnlend, .file = 5, .message = {}});
  const auto lent = MakeUdsFrame({.kind = UdsFrameKind::kLent, .file = 5, .message = {}});
  const int fd = other.fd();
  struct Case {
    Bytes packet;
    std::vector<int> fds;
  };
  const std::vector<Case> cases = {
      {junk, {}},
      {huge, {}},
      {Bytes(junk).first(1), {}},
      {lend.span(), {}},                    // no descriptor
      {lend.span(), {fd, fd}},              // two
      {lend.span(), {fd, fd, fd, fd, fd}},  // more than the kernel hands on
      {lend.span().first(20), {fd}},        // cut
      {unlend.span(), {}},                  // never lent
      {unlend.span(), {fd}},                // with a descriptor that does not belong there
      {lent.span(), {}},                    // an answer to nothing
      {junk, {fd}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto raw = Raw();
    const uint64_t id = server_->newest_peer().value;
    const uint64_t refused = server_->uds_stats().frames_refused;
    ASSERT_TRUE(raw->Send(cases[i].packet, cases[i].fds)) << i;
    ASSERT_TRUE(Until([&] { return downs_.contains(id); })) << i;
    EXPECT_TRUE(raw->closed());
    EXPECT_EQ(server_->uds_stats().frames_refused, refused + 1) << i;
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_TRUE(Served(honest, memory));
}

TEST_F(UdsFaults, NothingIsLentBeforeTheFirstWord) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed);
  UdsRawPeer raw(path());
  ASSERT_TRUE(raw.Lend(1, kBytes, memory.fd()));
  ASSERT_TRUE(Until([&] { return raw.closed(); }));
  EXPECT_EQ(server_->uds_stats().files_mapped, 0u);
}

TEST_F(UdsFaults, OnlyFilesInMemoryAreMapped) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kFile);
  const auto raw = Raw();
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const int folder = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
  const int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const int empty = memfd_create("crumb-test", MFD_CLOEXEC);
  const std::string self = "/proc/self/fd/" + std::to_string(memory.fd());
  const int path_only = open(self.c_str(), O_PATH | O_CLOEXEC);
  const int write_only = open(self.c_str(), O_WRONLY | O_CLOEXEC);
  const size_t descriptors = OpenDescriptors();
  uint64_t name = 0;
  const auto lend = [&](uint64_t bytes, int fd) {
    EXPECT_TRUE(raw->Lend(++name, bytes, fd));
    return Answer(raw.get());
  };
  for (const int fd : {pipes[0], pipes[1], folder, null, zero, program, path_only}) {
    EXPECT_EQ(lend(4096, fd), UdsRefusal::kNotMemory) << fd;
  }
  EXPECT_EQ(lend(4096, write_only), UdsRefusal::kNoMapping);
  EXPECT_EQ(lend(4096, empty), UdsRefusal::kTooShort);
  EXPECT_EQ(lend(0, memory.fd()), UdsRefusal::kTooShort);
  EXPECT_EQ(lend(kBytes + 1, memory.fd()), UdsRefusal::kTooShort);
  EXPECT_EQ(lend(UINT64_MAX, memory.fd()), UdsRefusal::kTooMany);
  EXPECT_EQ(server_->uds_stats().files_refused, name);
  EXPECT_EQ(server_->uds_stats().files_mapped, 0u);
  EXPECT_EQ(lend(kBytes, memory.fd()), UdsRefusal::kNone);  // and it was not closed for all that
  EXPECT_EQ(OpenDescriptors(), descriptors);
  for (const int fd : {pipes[0], pipes[1], folder, null, zero, program, empty, path_only}) {
    close(fd);
  }
  close(write_only);
}

TEST_F(UdsFaults, FilesAndBytesOfAPeerAreBounded) {
  Start({.files_per_peer_max = 3, .mapped_bytes_per_peer_max = 4 * kBytes});
  SharedMemory memory(kBytes, SharedKind::kSealed), large(3 * kBytes, SharedKind::kSealed);
  const auto raw = Raw();
  ASSERT_TRUE(raw->Lend(1, kBytes, memory.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kNone);
  ASSERT_TRUE(raw->Lend(2, kBytes, memory.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kNone);
  ASSERT_TRUE(raw->Lend(3, 3 * kBytes, large.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kTooMany);
  ASSERT_TRUE(raw->Lend(4, kBytes, memory.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kNone);
  ASSERT_TRUE(raw->Lend(5, kBytes, memory.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kTooMany);
  EXPECT_EQ(server_->uds_stats().bytes_mapped, 3 * kBytes);
  ASSERT_TRUE(raw->SendFrame({.kind = UdsFrameKind::kUnlend, .file = 2, .message = {}}));
  ASSERT_TRUE(raw->Lend(6, kBytes, memory.fd()));
  EXPECT_EQ(Answer(raw.get()), UdsRefusal::kNone);
  ASSERT_TRUE(raw->Lend(6, kBytes, memory.fd()));  // a name twice
  ASSERT_TRUE(Until([&] { return raw->closed(); }));
  EXPECT_EQ(server_->uds_stats().files_mapped, 0u);
}

TEST_F(UdsFaults, MemoryForReadingServesPutsAlone) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed);
  const std::string self = "/proc/self/fd/" + std::to_string(memory.fd());
  const int read_only = open(self.c_str(), O_RDONLY | O_CLOEXEC);
  Client client = ConnectOnly();
  SharedRange range = memory.range();
  range.fd = read_only;
  const auto region = Lend(&client, range);
  ASSERT_TRUE(region.ok()) << region.status();
  client.region = *region;
  ASSERT_TRUE(Register(client, *region).ok());
  std::vector<uint8_t> local(kBytes);
  EXPECT_EQ(server_->Push(Whole(client, &local, 1)), BlockResult::kInvalid);
  EXPECT_EQ(server_->Pull(Whole(client, &local, 2)), BlockResult::kOk);
  EXPECT_TRUE(Until([&] { return done_.contains(2); }));
  EXPECT_EQ(done_[2], BlockResult::kOk);
  close(read_only);
}

TEST_F(UdsFaults, KeysThatNameOtherMemoryAreRefused) {
  Start();
  SharedMemory memory(kBytes, SharedKind::kSealed), other(kBytes, SharedKind::kSealed);
  const Client client = Connect(memory), neighbour = Connect(other);
  const auto forged = [&](uint64_t bytes, const UdsRkey& place) {
    const auto key = MakeUdsRkey(place);
    Region region{.address = client.region.address, .bytes = bytes, .rkey = {}};
    region.rkey = EncodeRkey({.address = region.address, .bytes = bytes, .key = key});
    return Register(client, region).code();
  };
  EXPECT_EQ(forged(kBytes, {.file = 1, .offset = 0}), absl::StatusCode::kOk);
  EXPECT_EQ(forged(kBytes, {.file = 2, .offset = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(kBytes, {.file = 1, .offset = 1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(1, {.file = 1, .offset = kBytes}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(1, {.file = 1, .offset = UINT64_MAX}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forged(kBytes + 1, {.file = 1, .offset = 0}), absl::StatusCode::kInvalidArgument);
  Region plain = client.region;
  plain.rkey.clear();
  EXPECT_EQ(Register(client, plain).code(), absl::StatusCode::kInvalidArgument);
  Region moved = client.region;
  moved.address += 64;
  EXPECT_EQ(Register(client, moved).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Served(neighbour, other));
}

TEST_F(UdsFaults, MemoryThatShrinksFailsItsTransferAlone) {
  Start();
  SharedMemory memory(1 << 20, SharedKind::kFile), other(kBytes, SharedKind::kSealed);
  const Client client = Connect(memory), neighbour = Connect(other);
  EXPECT_TRUE(Served(client, memory));
  ASSERT_EQ(ftruncate(memory.fd(), 4096), 0);
  std::vector<uint8_t> local(1 << 20);
  for (uint64_t token = 1000; token < 1020; ++token) {
    const Transfer transfer = Whole(client, &local, token);
    ASSERT_EQ(token % 2 == 0 ? server_->Pull(transfer) : server_->Push(transfer), BlockResult::kOk);
    ASSERT_TRUE(Until([&] { return done_.contains(token); }));
    EXPECT_EQ(done_[token], BlockResult::kInvalid);
  }
  EXPECT_EQ(server_->uds_stats().copies_faulted, 20u);
  EXPECT_FALSE(downs_.contains(client.peer.value));
  EXPECT_TRUE(Served(neighbour, other));
  ASSERT_EQ(ftruncate(memory.fd(), 1 << 20), 0);
  EXPECT_TRUE(Served(client, memory));
}

}  // namespace
}  // namespace crumb
