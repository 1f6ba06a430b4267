// Kills workers in the middle of their puts and gets over the data socket, and looks each time
// whether the daemon is back where it was: descriptors, mappings, resident shared memory, pins,
// transfers, staging, requests. The worker is this program again, with no library but the
// transport.
//   uds_kill [--kills N] [--seed S]       kill:   prints the figure, exit 0 if every kill came back
//   uds_kill --worker SOCKET SESSION LAYOUT SEED       a worker; killed by its parent
// One thread in each process.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/net/uds_transport.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"

extern char** environ;

namespace crumb {
namespace {

constexpr uint32_t kBlocks = 16;  // of a request
constexpr uint32_t kDepth = 16;
constexpr uint64_t kPage = testing::kSmallPageBytes;
constexpr uint64_t kMemoryBytes = kPage * kBlocks * kDepth;
constexpr uint64_t kKeys = 600;
constexpr char kMemoryName[] = "crumb-uds-kill";
constexpr int kProgressFd = 3;  // both processes map it
constexpr uint64_t kBackUs = 10'000'000;

struct Progress {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> answered{0};
};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "uds_kill: %s\n", why.c_str());
  std::exit(2);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status().ToString());
  return *std::move(value);
}

// --- the worker ---

void SendRequest(UdsTransport* transport, PeerId daemon, const WireHeader& header, Rng* rng) {
  std::vector<uint8_t> out(RequestBytes(header.block_count, header.slots_per_block));
  WriteWireHeader(header, absl::MakeSpan(out));
  for (uint32_t i = 0; i < header.block_count; ++i) {
    const uint64_t key = rng->Below(kKeys);
    const auto slot = static_cast<uint32_t>(header.request_id % kDepth * kBlocks + i);
    WireBlock block;
    block.digest = DigestOf(Bytes(reinterpret_cast<const uint8_t*>(&key), sizeof(key)));
    block.token_start = kTokenStartUnknown;
    WriteWireBlock(i, block, {&slot, 1}, absl::MakeSpan(out));
  }
  FinishWireMessage(absl::MakeSpan(out));
  const BlockResult sent = transport->Send(daemon, out);
  if (sent != BlockResult::kOk) Die(ToString(sent));
}

size_t TakeReplies(UdsTransport* transport, std::vector<uint64_t>* free) {
  std::array<NetEvent, 32> events;
  const size_t count = transport->Poll(absl::MakeSpan(events));
  for (size_t i = 0; i < count; ++i) {
    if (events[i].kind != NetEventKind::kMessage) Die("the daemon hung up");
    WireReply reply;
    if (ParseReply(events[i].message, &reply) != WireCheck::kOk) Die("a bad reply");
    free->push_back(reply.header.request_id % kDepth);
  }
  if (count == 0 && transport->Arm()) {
    pollfd wait = {.fd = transport->wake_fd(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, 1000);
  }
  return count;
}

int RunWorker(char** argv) {
  auto* progress = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, kProgressFd, 0));
  const int fd = memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, kMemoryBytes) != 0) Die("no memory to lend");
  Rng rng(std::strtoull(argv[5], nullptr, 10));
  // Half of the workers lend memory that could shrink: another path in the daemon.
  if (rng.Below(2) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) Die("no seal");
  auto* memory =
      static_cast<uint8_t*>(mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  std::memset(memory, 1, kMemoryBytes);
  auto transport = Must(UdsTransport::Create({.peers_max = 1, .transfers_max = 1}));
  const PeerId daemon = Must(transport->Connect(argv[2]));
  WireHeader header;
  header.session_id = std::strtoull(argv[3], nullptr, 10);
  header.layout_handle = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
  header.type = WireType::kHello;
  SendRequest(transport.get(), daemon, header, &rng);
  std::vector<uint64_t> free;
  while (TakeReplies(transport.get(), &free) == 0) {
  }
  const Region region = Must(transport->Lend({.fd = fd,
                                              .offset = 0,
                                              .bytes = kMemoryBytes,
                                              .address = reinterpret_cast<uint64_t>(memory)}));
  std::printf(
      "%llu %s\n", static_cast<unsigned long long>(region.address),
      Hex(Bytes(reinterpret_cast<const uint8_t*>(region.rkey.data()), region.rkey.size())).c_str());
  std::fflush(stdout);
  char go = 0;
  if (read(STDIN_FILENO, &go, 1) != 1) return 0;  // the parent is gone
  header.region_set = 1;
  header.block_count = kBlocks;
  header.slots_per_block = 1;
  free.clear();
  for (uint64_t slot = 0; slot < kDepth; ++slot) free.push_back(slot);
  for (uint64_t round = 0;; ++round) {  // until killed
    while (!free.empty()) {
      header.type = rng.Below(2) == 0 ? WireType::kPut : WireType::kGet;
      header.request_id = round++ * kDepth + free.back();
      free.pop_back();
      progress->sent.fetch_add(1);
      SendRequest(transport.get(), daemon, header, &rng);
    }
    progress->answered.fetch_add(TakeReplies(transport.get(), &free));
  }
}

// --- the parent ---

struct State {
  uint64_t fds = 0;
  uint64_t mappings = 0;         // of lent memory
  uint64_t shared_resident = 0;  // bytes
  uint64_t resident = 0;         // bytes
  double held = 0;               // connections, files, transfers, pins, requests, staging
  double outlived = 0;
};

double Metric(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  double sum = 0;
  while (std::getline(lines, line)) {
    const bool match = line.rfind(name, 0) == 0 &&
                       (line[name.size()] == ' ' || line[name.size()] == '{' || name.back() == '}');
    if (match) sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return sum;
}

uint64_t StatusKiB(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  uint64_t value = 0;
  while (file >> word) {
    if (word == name) file >> value;
  }
  return value << 10;
}

State Look(const testing::DaemonProcess& daemon) {
  State state;
  const std::string text = testing::HttpBody(daemon.http(), "/metrics");
  for (const char* name : {"crumb_uds_connections", "crumb_uds_mapped_files", "crumb_uds_transfers",
                           "crumb_uds_messages_held", "crumb_inflight_requests",
                           "crumb_tier_blocks{tier=\"dram\",state=\"pinned\"}", "crumb_waiters"}) {
    state.held += Metric(text, name);
  }
  state.outlived = Metric(text, "crumb_uds_outlived_total");
  const std::string proc = "/proc/" + std::to_string(daemon.pid());
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    (void)entry;
    ++state.fds;
  }
  std::ifstream maps(proc + "/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find(kMemoryName) != std::string::npos) ++state.mappings;
  }
  state.shared_resident = StatusKiB(daemon.pid(), "RssShmem:");
  state.resident = StatusKiB(daemon.pid(), "VmRSS:");
  return state;
}

class Killer {
 public:
  Killer(testing::DaemonProcess* daemon, testing::RpcWorker* rpc, uint64_t seed)
      : daemon_(daemon), rpc_(rpc), rng_(seed) {
    const int fd = memfd_create("progress", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 4096) != 0) Die("no memory for progress");
    progress_ = static_cast<Progress*>(
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    progress_fd_ = fd;
  }

  // One worker's life. True: requests of it were under way when it died.
  bool KillOne() {
    v1::HelloRequest hello;
    hello.set_wire_version(kWireVersion);
    v1::HelloReply reply;
    if (!rpc_->cache().Hello(testing::Context().get(), hello, &reply).ok()) Die("no Hello");
    v1::RegisterLayoutRequest layout;
    layout.set_session(reply.session());
    layout.set_name("small");
    *layout.mutable_identity() = testing::SmallModel();
    layout.set_codec("raw");
    v1::RegisterLayoutReply bound;
    if (!rpc_->cache().RegisterLayout(testing::Context().get(), layout, &bound).ok()) {
      Die("no layout");
    }
    progress_->sent = progress_->answered = 0;
    Spawn(reply.data_socket(), reply.session(), bound.layout().handle());
    RegisterMemory(reply.session(), bound.layout().handle(), ReadLine());
    if (write(in_, "g", 1) != 1) Die("the worker does not listen");
    while (progress_->sent.load() < 1 + rng_.Below(60)) usleep(50);
    usleep(static_cast<useconds_t>(rng_.Below(4000)));
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(in_);
    close(out_);
    v1::GoodbyeRequest bye;
    bye.set_session(reply.session());
    v1::GoodbyeReply gone;
    (void)rpc_->cache().Goodbye(testing::Context().get(), bye, &gone);
    return progress_->sent.load() > progress_->answered.load();
  }

 private:
  void Spawn(const std::string& socket, uint64_t session, uint32_t layout) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) Die("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, progress_fd_, kProgressFd);
    std::array<std::string, 6> words = {"uds_kill",
                                        "--worker",
                                        socket,
                                        std::to_string(session),
                                        std::to_string(layout),
                                        std::to_string(rng_.Next() >> 1)};
    std::array<char*, 7> argv{};
    for (size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
    if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ) != 0) {
      Die("no worker");
    }
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }

  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (read(out_, &c, 1) == 1 && c != '\n') line.push_back(c);
    return line;
  }

  void RegisterMemory(uint64_t session, uint32_t layout, const std::string& line) {
    std::istringstream words(line);
    uint64_t address = 0;
    std::string hex;
    words >> address >> hex;
    std::vector<uint8_t> rkey(hex.size() / 2);
    if (rkey.empty() || !ParseHex(hex, absl::MakeSpan(rkey))) Die("the worker lent nothing");
    v1::RegisterRegionsRequest request;
    request.set_session(session);
    request.set_region_set(1);
    request.set_layout_handle(layout);
    request.set_slots(kBlocks * kDepth);
    request.set_slots_per_block(1);
    request.set_slot_bytes(kPage);
    v1::Region* region = request.add_regions();
    region->set_address(address);
    region->set_bytes(kMemoryBytes);
    region->set_rkey(std::string(rkey.begin(), rkey.end()));
    v1::RegisterRegionsReply reply;
    const grpc::Status status =
        rpc_->cache().RegisterRegions(testing::Context().get(), request, &reply);
    if (!status.ok()) Die(status.error_message());
  }

  testing::DaemonProcess* daemon_;
  testing::RpcWorker* rpc_;
  Rng rng_;
  Progress* progress_ = nullptr;
  int progress_fd_ = -1;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

// Microseconds until the daemon is back, as it was at `base`; ends the program if it never is.
uint64_t AwaitBack(const testing::DaemonProcess& daemon, const State& base, State* last) {
  SteadyClock clock;
  const uint64_t start = clock.now_us();
  for (;;) {
    const State now = *last = Look(daemon);
    const bool back = now.fds <= base.fds && now.mappings == 0 && now.held == 0 &&
                      now.shared_resident <= base.shared_resident;
    if (back) return clock.now_us() - start;
    if (clock.now_us() - start > kBackUs) {
      char text[256];
      std::snprintf(text, sizeof(text),
                    "not back after a kill: fds %llu (%llu), mappings %llu, shared %llu (%llu), "
                    "held %.0f",
                    static_cast<unsigned long long>(now.fds),
                    static_cast<unsigned long long>(base.fds),
                    static_cast<unsigned long long>(now.mappings),
                    static_cast<unsigned long long>(now.shared_resident),
                    static_cast<unsigned long long>(base.shared_resident), now.held);
      std::printf("%s\n", text);
      std::exit(1);
    }
    usleep(1000);
  }
}

int RunParent(uint64_t kills, uint64_t seed) {
  std::string folder = "/tmp/crumb-uds-kill-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) Die("no folder");
  {
    testing::DaemonProcess daemon(folder, {"pool.dram_bytes=64MiB", "ucx.enabled=false"});
    if (!daemon.Start()) Die("crumbd did not start");
    testing::RpcWorker rpc(daemon.grpc());
    if (!rpc.Connect()) Die("no answer");
    Killer killer(&daemon, &rpc, seed);
    constexpr int kWarmUp = 20;
    for (int i = 0; i < kWarmUp; ++i) killer.KillOne();
    usleep(500'000);
    const State base = Look(daemon);
    if (base.held != 0 || base.mappings != 0) Die("not at rest to begin with");
    uint64_t busy = 0, in_copy = 0, slowest = 0;
    State end = base;
    for (uint64_t i = 0; i < kills; ++i) {
      if (killer.KillOne()) ++busy;
      const double outlived = end.outlived;
      slowest = std::max(slowest, AwaitBack(daemon, base, &end));
      if (end.outlived > outlived) ++in_copy;
    }
    const int64_t grown = static_cast<int64_t>(end.resident) - static_cast<int64_t>(base.resident);
    const bool small = grown < (16 << 20);
    const bool meant = busy * 10 >= kills * 9 && in_copy * 10 >= kills;
    std::printf(
        "%llu kills: %llu with requests under way, %llu in the middle of a copy; back after "
        "at most %llu ms; descriptors %llu -> %llu, resident %+lld KiB\n",
        static_cast<unsigned long long>(kills), static_cast<unsigned long long>(busy),
        static_cast<unsigned long long>(in_copy), static_cast<unsigned long long>(slowest / 1000),
        static_cast<unsigned long long>(base.fds), static_cast<unsigned long long>(end.fds),
        static_cast<long long>(grown / 1024));
    if (!small) std::printf("resident memory grew\n");
    if (!meant) std::printf("too few kills met work\n");
    if (!small || !meant) return 1;
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--worker") == 0) return crumb::RunWorker(argv);
  uint64_t kills = 1000, seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--kills") == 0) kills = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return crumb::RunParent(kills, seed);
}
