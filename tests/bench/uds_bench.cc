// Get and put of raw pages over mapped memory: one engine on its own thread, one client, no gRPC.
// Prints bytes per second beside the machine's own copy of the same pages, and the latency of
// single small gets. Nothing here passes or fails.
//   uds_bench [SECONDS]      default 1 a measurement
// Threads: the engine's, its worker, and main, the client, which hashes every page it gets.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/uds_transport.h"
#include "gpu/device/host_queue.h"
#include "tests/conformance/net/shared_memory.h"

namespace crumb {
namespace {

constexpr uint32_t kSlots = 64;
constexpr uint64_t kPoolBytes = 640ull << 20;
constexpr uint64_t kSession = 0x1234567;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return std::move(value).value();
}

Identity PageIdentity(uint32_t heads, uint32_t tokens) {
  Identity identity;
  identity.model = "bench/model";
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = tokens;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = heads,
                             .k_dim = 128,
                             .v_dim = 128,
                             .window = 0,
                             .layer_ids = {0}});
  return identity;
}

// The daemon's half, without its control plane.
class Host {
 public:
  Host(const Identity& identity, uint32_t spin_us)
      : layout_(std::make_shared<const Layout>(Must(Layout::Make(identity)))),
        pool_(Must(PagePool::Create({.bytes = kPoolBytes}))),
        queue_({.threads = 1}),
        uds_(Must(UdsTransport::Create({}))),
        loop_(clock_) {
    EngineOptions options;
    options.clock = &clock_;
    options.pool = pool_.get();
    options.queue = &queue_;
    engine_ = Must(Engine::Create(options));
    Must(uds_->Listen(folder_.path("data")));
    engine_->AddTransport(uds_.get(), uds_.get());
    LayoutBinding binding{.layout = layout_, .tenant = "t", .ladder = {}, .readers = {}};
    for (const PartShape& part : layout_->parts()) {
      binding.ladder.push_back({Must(
          PageCodec::Create(part, CodecDescriptor::Default(CodecKind::kRaw, Sha256{}), nullptr))});
      binding.readers.emplace_back();
    }
    Must(engine_->BindLayout(1, std::move(binding)));
    Must(engine_->OpenSession(SessionId{kSession}, "t"));
    loop_.AddPoller(engine_.get());
    thread_ = std::thread([this, spin_us] { loop_.Run(spin_us); });
  }
  ~Host() {
    loop_.Stop();
    thread_.join();
  }
  std::string path() const { return folder_.path("data"); }
  uint64_t raw_bytes() const { return layout_->parts()[0].raw_bytes; }

  void Register(const Region& region, uint64_t slot_bytes) {
    struct Job {
      Host* host;
      RegionSetSpec spec;
      std::promise<absl::Status> done;
    } job{this, {}, {}};
    job.spec.regions = {region};
    job.spec.slots = kSlots;
    job.spec.slot_bytes = slot_bytes;
    std::future<absl::Status> done = job.done.get_future();
    const bool posted = loop_.Post({.run =
                                        [](void* arg) {
                                          auto* j = static_cast<Job*>(arg);
                                          j->done.set_value(j->host->engine_->RegisterRegions(
                                              SessionId{kSession}, 1, 1, j->spec));
                                        },
                                    .arg = &job});
    if (!posted) std::exit(1);
    Must(done.get());
  }

 private:
  SocketFolder folder_;
  SteadyClock clock_;
  std::shared_ptr<const Layout> layout_;
  std::unique_ptr<PagePool> pool_;
  HostQueue queue_;
  std::unique_ptr<UdsTransport> uds_;
  std::unique_ptr<Engine> engine_;
  Loop loop_;
  std::thread thread_;
};

class Client {
 public:
  Client(Host* host, uint64_t slot_bytes)
      : slot_bytes_(slot_bytes),
        memory_(slot_bytes * kSlots, SharedKind::kSealed),
        transport_(Must(UdsTransport::Create({.peers_max = 1, .transfers_max = 1}))),
        peer_(Must(transport_->Connect(host->path()))) {
    std::memset(memory_.bytes().data(), 1, memory_.bytes().size());
    Send(WireType::kHello, 0, 0, 0);
    while (Poll() == 0) Wait();
    host->Register(Must(transport_->Lend(memory_.range())), slot_bytes);
  }

  void Send(WireType type, uint64_t id, uint64_t key, uint32_t slot) {
    WireHeader header;
    header.type = type;
    header.session_id = kSession;
    header.request_id = id;
    const bool data = type != WireType::kHello;
    header.block_count = data ? 1 : 0;
    header.layout_handle = header.region_set = 1;
    header.slots_per_block = data ? 1 : 0;
    std::array<uint8_t, 256> room{};
    const MutableBytes out(room.data(), RequestBytes(header.block_count, header.slots_per_block));
    WriteWireHeader(header, out);
    WireBlock block;
    block.digest = DigestOf(Bytes(reinterpret_cast<const uint8_t*>(&key), sizeof(key)));
    if (data) WriteWireBlock(0, block, {&slot, 1}, out);
    FinishWireMessage(out);
    if (transport_->Send(peer_, out) != BlockResult::kOk) std::exit(1);
  }

  // Replies that came; every one must be kOk and its page what it says.
  size_t Poll() {
    std::array<NetEvent, 64> events;
    const size_t count = transport_->Poll(absl::MakeSpan(events));
    size_t replies = 0;
    for (size_t i = 0; i < count; ++i) {
      WireReply reply;
      if (events[i].kind != NetEventKind::kMessage) std::exit(2);
      if (ParseReply(events[i].message, &reply) != WireCheck::kOk) std::exit(3);
      ++replies;
      if (reply.header.block_count == 0) continue;
      const WireBlockReply block = reply.block(0);
      if (block.result != BlockResult::kOk) {
        std::fprintf(stderr, "request failed: %s\n", ToString(block.result));
        std::exit(4);
      }
      const auto slot = static_cast<uint32_t>(reply.header.request_id % kSlots);
      if (hashes_ && Xxh3(Slot(slot)) != block.checksum) std::exit(5);
      free_.push_back(slot);
    }
    return replies;
  }
  void Wait() {
    pollfd wait = {.fd = transport_->wake_fd(), .events = POLLIN, .revents = 0};
    if (transport_->Arm()) poll(&wait, 1, -1);
  }
  MutableBytes Slot(uint32_t slot) {
    return memory_.bytes().subspan(slot * slot_bytes_, slot_bytes_);
  }

  // `total` requests, `depth` at a time; keys by `key_of(i)`.
  template <typename KeyOf>
  void Run(WireType type, uint64_t total, uint32_t depth, KeyOf key_of) {
    hashes_ = type == WireType::kGet;
    free_.clear();
    for (uint32_t slot = 0; slot < depth; ++slot) free_.push_back(slot);
    uint64_t sent = 0, answered = 0;
    while (answered < total) {
      while (sent < total && !free_.empty()) {
        const uint32_t slot = free_.back();
        free_.pop_back();
        const uint64_t key = key_of(sent);
        if (type == WireType::kPut) std::memcpy(Slot(slot).data() + 8, &key, sizeof(key));
        Send(type, sent++ * kSlots + slot, key, slot);
      }
      const size_t got = Poll();
      answered += got;
      if (got == 0) Wait();
    }
  }

 private:
  const uint64_t slot_bytes_;
  SharedMemory memory_;
  std::unique_ptr<UdsTransport> transport_;
  PeerId peer_;
  bool hashes_ = false;
  std::vector<uint32_t> free_;
};

// Processor time of all threads of this process.
double CpuUs() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e6 + static_cast<double>(used.tv_nsec) / 1e3;
}

double CopyRate(uint64_t page) {
  SteadyClock clock;
  std::vector<uint8_t> from(256 << 20, 1), to(page * 16, 2);
  Rng rng(1);
  const uint64_t start = clock.now_us();
  uint64_t done = 0;
  for (; clock.now_us() - start < 300'000; ++done) {
    std::memcpy(&to[done % 16 * page], &from[rng.Below(from.size() / page) * page], page);
  }
  return static_cast<double>(done * page) / static_cast<double>(clock.now_us() - start) / 1e3;
}

void Throughput(const char* name, double seconds) {
  Host host(PageIdentity(8, 64), 20);
  const uint64_t page = host.raw_bytes();
  Client client(&host, page);
  SteadyClock clock;
  Rng rng(7);
  const uint64_t keys = (384ull << 20) / page;
  const auto rate = [&](uint64_t ops, uint64_t us) {
    return static_cast<double>(ops * page) / static_cast<double>(us) / 1e3;
  };
  const uint64_t put_start = clock.now_us();
  client.Run(WireType::kPut, keys, 16, [](uint64_t i) { return i; });
  const double put = rate(keys, clock.now_us() - put_start);
  uint64_t ops = 0;
  const double cpu = CpuUs();
  const uint64_t start = clock.now_us();
  const auto limit = static_cast<uint64_t>(seconds * 1e6);
  while (clock.now_us() - start < limit) {
    client.Run(WireType::kGet, 2000, 16, [&](uint64_t) { return rng.Below(keys); });
    ops += 2000;
  }
  const double got = rate(ops, clock.now_us() - start);
  std::printf(
      "%s page %llu KiB depth 16: get %.2f GB/s, %.1f us of processor time each, first put "
      "%.2f GB/s, one copy %.2f GB/s\n",
      name, static_cast<unsigned long long>(page >> 10), got,
      (CpuUs() - cpu) / static_cast<double>(ops), put, CopyRate(page));
}

void Latency(double seconds) {
  Host host(PageIdentity(1, 8), 20);
  Client client(&host, host.raw_bytes());
  SteadyClock clock;
  client.Run(WireType::kPut, 4096, 16, [](uint64_t i) { return i; });
  std::vector<double> took;
  Rng rng(9);
  const uint64_t start = clock.now_us();
  while (clock.now_us() - start < static_cast<uint64_t>(seconds * 1e6)) {
    const auto before = std::chrono::steady_clock::now();
    client.Run(WireType::kGet, 1, 1, [&](uint64_t) { return rng.Below(4096); });
    took.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before)
            .count());
  }
  std::sort(took.begin(), took.end());
  std::printf("page %llu KiB depth 1: get p50 %.1f us, p99 %.1f us (%zu)\n",
              static_cast<unsigned long long>(host.raw_bytes() >> 10), took[took.size() / 2],
              took[took.size() * 99 / 100], took.size());
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  crumb::Throughput("mapped", seconds);
  crumb::Latency(seconds);
  return 0;
}
