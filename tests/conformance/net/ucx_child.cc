// Both ends of a test's child process: pipes carry the hello blobs and a few commands. Must never
// use UCX before fork. One thread in each process.
#include "tests/conformance/net/ucx_child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/rng.h"
#include "tests/conformance/net/whole_region.h"

extern char** environ;

namespace crumb {
namespace {

constexpr char kFlag[] = "--ucx-child";
constexpr int kReplyMs = 20'000;

bool WriteAll(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, at, bytes);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd wait = {.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kReplyMs) <= 0) return false;
    const ssize_t n = ::read(fd, at, bytes);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool WriteBlob(int fd, const std::string& blob) {
  const auto bytes = static_cast<uint32_t>(blob.size());
  return WriteAll(fd, &bytes, sizeof(bytes)) && WriteAll(fd, blob.data(), blob.size());
}

bool ReadBlob(int fd, std::string* blob) {
  uint32_t bytes = 0;
  if (!ReadAll(fd, &bytes, sizeof(bytes)) || bytes > 1 << 20) return false;
  blob->resize(bytes);
  return ReadAll(fd, blob->data(), bytes);
}

std::string EncodeRegion(const Region& region) {
  ByteWriter writer;
  writer.Write<uint64_t>(region.address);
  writer.Write<uint64_t>(region.bytes);
  writer.WriteString(region.rkey);
  return writer.str();
}

Region DecodeRegion(const std::string& text) {
  ByteReader reader(AsBytes(text));
  Region region;
  region.address = reader.Read<uint64_t>();
  region.bytes = reader.Read<uint64_t>();
  region.rkey = reader.ReadString(4096);
  return region;
}

// The child's side.
class ChildMain {
 public:
  explicit ChildMain(const UcxChild::Options& options)
      : options_(options), memory_(options.memory_bytes) {
    FillPattern(options.seed, absl::MakeSpan(memory_));
  }

  int Run() {
    UcxOptions ucx;
    ucx.tls = options_.tls;
    ucx.peers_max = 4;
    ucx.keepalive_us = 50'000;
    auto made = UcxTransport::Create(ucx);
    if (!made.ok()) return 3;
    transport_ = *std::move(made);
    if (!Meet()) return 4;
    while (!done_) Turn();
    transport_->ClosePeer(peer_);
    NetEvent events[16];
    for (int i = 0; i < 1000 && transport_->stats().peers_closing > 0; ++i) {
      transport_->Poll(absl::MakeSpan(events));
    }
    return 0;
  }

 private:
  bool Meet() {
    uint64_t cookie = 0;
    const auto region = transport_->Lend(absl::MakeSpan(memory_));
    std::string theirs, lent;
    if (!region.ok() || !WriteBlob(1, transport_->MakeHello(&cookie)) ||
        !WriteBlob(1, EncodeRegion(*region)) || !ReadBlob(0, &theirs) || !ReadBlob(0, &lent)) {
      return false;
    }
    const auto peer = transport_->Connect(AsBytes(theirs), cookie);
    if (!peer.ok()) return false;
    peer_ = *peer;
    if (options_.role != ChildRole::kDriver) return true;
    lent_ = DecodeRegion(lent);
    segment_ = {.region = 0, .address = lent_.address, .local_offset = 0, .bytes = lent_.bytes};
    memory_.resize(lent_.bytes);  // lent to nobody
    return transport_->RegisterRegions(peer_, 1, *WholeRegion(lent_)).ok();
  }

  void Turn() {
    if (options_.role == ChildRole::kDriver) Drive();
    NetEvent events[32];
    const size_t count = transport_->Poll(absl::MakeSpan(events));
    for (size_t i = 0; i < count; ++i) {
      if (events[i].kind == NetEventKind::kMessage) transport_->Send(peer_, events[i].message);
      if (events[i].kind == NetEventKind::kTransferDone) --running_;
    }
    if (count > 0) return;
    const bool idle = transport_->Arm();
    pollfd wait[2] = {{.fd = 0, .events = POLLIN, .revents = 0},
                      {.fd = transport_->wake_fd(), .events = POLLIN, .revents = 0}};
    ::poll(wait, 2, idle ? 1000 : 0);
    if (wait[0].revents != 0) Command();
  }

  void Drive() {
    for (; running_ < 8; ++running_) {
      const Transfer transfer = {.peer = peer_,
                                 .region_set = 1,
                                 .segments = {&segment_, 1},
                                 .local = absl::MakeSpan(memory_),
                                 .token = 0};
      const BlockResult result =
          pulls_++ % 2 == 0 ? transport_->Pull(transfer) : transport_->Push(transfer);
      if (result != BlockResult::kOk) return;
    }
  }

  void Command() {
    uint64_t seed = 0;
    if (!ReadAll(0, &seed, sizeof(seed))) {
      done_ = true;
      return;
    }
    std::vector<uint8_t> expected(memory_.size());
    FillPattern(seed, absl::MakeSpan(expected));
    const char answer = expected == memory_ ? 'y' : 'n';
    done_ = !WriteAll(1, &answer, 1);
  }

  const UcxChild::Options options_;
  std::vector<uint8_t> memory_;
  std::unique_ptr<UcxTransport> transport_;
  PeerId peer_;
  Region lent_;
  Segment segment_;
  int running_ = 0;
  int pulls_ = 0;
  bool done_ = false;
};

}  // namespace

void FillPattern(uint64_t seed, MutableBytes out) {
  Rng rng(seed);
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t)) {
    const uint64_t word = rng.Next();
    std::memcpy(out.data() + at, &word, std::min(sizeof(word), out.size() - at));
  }
}

bool RunUcxChild(int argc, char** argv, int* exit_code) {
  if (argc != 6 || std::strcmp(argv[1], kFlag) != 0) return false;
  UcxChild::Options options;
  options.tls = argv[2];
  options.role = std::strcmp(argv[3], "driver") == 0 ? ChildRole::kDriver : ChildRole::kLender;
  options.memory_bytes = std::stoull(argv[4]);
  options.seed = std::stoull(argv[5]);
  *exit_code = ChildMain(options).Run();
  return true;
}

std::unique_ptr<UcxChild> UcxChild::Start(const Options& options, UcxTransport* transport,
                                          const Region& lent) {
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) return nullptr;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
  std::string args[] = {"ucx_child",
                        kFlag,
                        options.tls,
                        options.role == ChildRole::kDriver ? "driver" : "lender",
                        std::to_string(options.memory_bytes),
                        std::to_string(options.seed)};
  char* argv[] = {args[0].data(), args[1].data(), args[2].data(), args[3].data(),
                  args[4].data(), args[5].data(), nullptr};
  auto child = std::make_unique<UcxChild>();
  const int error = posix_spawn(&child->pid_, "/proc/self/exe", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  child->in_ = to_child[1];
  child->out_ = from_child[0];
  EXPECT_EQ(error, 0);
  if (error != 0) child->pid_ = -1;
  const bool met = error == 0 && child->Exchange(options, transport, lent);
  EXPECT_TRUE(met) << "the child did not connect";
  return met ? std::move(child) : nullptr;
}

bool UcxChild::Exchange(const Options& options, UcxTransport* transport, const Region& lent) {
  std::string theirs, region;
  if (!ReadBlob(out_, &theirs) || !ReadBlob(out_, &region)) return false;
  uint64_t cookie = 0;
  const std::string mine = transport->MakeHello(&cookie);
  const auto peer = transport->Connect(AsBytes(theirs), cookie);
  EXPECT_TRUE(peer.ok()) << peer.status();
  if (!peer.ok()) return false;
  peer_ = *peer;
  region_ = DecodeRegion(region);
  if (options.role == ChildRole::kLender &&
      !transport->RegisterRegions(peer_, 1, *WholeRegion(region_)).ok()) {
    return false;
  }
  return WriteBlob(in_, mine) && WriteBlob(in_, EncodeRegion(lent));
}

UcxChild::~UcxChild() {
  if (in_ >= 0) ::close(in_);
  if (pid_ > 0) {
    pollfd wait = {.fd = out_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kReplyMs) <= 0) ::kill(pid_, SIGKILL);  // its output ends when it does
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
}

void UcxChild::Kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void UcxChild::Signal(int signal) { ::kill(pid_, signal); }

bool UcxChild::Verify(uint64_t seed) {
  char answer = 0;
  return WriteAll(in_, &seed, sizeof(seed)) && ReadAll(out_, &answer, 1) && answer == 'y';
}

}  // namespace crumb
