// Pull and push of pages between two processes over UCX: bytes per second and latency, by
// transport, page size and queue depth; also what a peer costs (time, descriptors, memory). Prints
// one line each; nothing here passes or fails.
//   net_bench [TLS...]     default: tcp, posix, and UCX's own choice ("any")
// One thread in each of the two processes.
#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/clock.h"
#include "tests/conformance/net/ucx_child.h"

namespace crumb {
namespace {

constexpr uint64_t kSecondsUs = 700'000;  // of one measurement
constexpr size_t kDepth = 16;

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

double ResidentMiB() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// Rows of 256 bytes far apart: what a tensor with tokens outside heads looks like.
enum class Shape { kPages, kRows };

struct Job {
  const char* name;
  bool push;
  Shape shape;
  size_t page;
  size_t depth;
};

class Bench {
 public:
  Bench(UcxTransport* transport, const UcxChild& child) : transport_(transport), child_(child) {}

  void Run(const char* tls, const Job& job) {
    std::vector<std::vector<uint8_t>> local(job.depth, std::vector<uint8_t>(job.page, 1));
    std::vector<std::vector<Segment>> segments(job.depth);
    std::vector<uint64_t> started(job.depth), latencies;
    latencies.reserve(1 << 20);
    for (size_t i = 0; i < job.depth; ++i) segments[i] = SegmentsOf(job, i);
    const uint64_t begin = clock_.now_us();
    uint64_t now = begin, bytes = 0;
    const auto start = [&](size_t i) {
      started[i] = now;
      const Transfer transfer = {.peer = child_.peer(),
                                 .region_set = 1,
                                 .segments = segments[i],
                                 .local = absl::MakeSpan(local[i]),
                                 .token = i};
      const BlockResult result = job.push ? transport_->Push(transfer) : transport_->Pull(transfer);
      if (result != BlockResult::kOk) std::exit(1);
    };
    for (size_t i = 0; i < job.depth; ++i) start(i);
    size_t running = job.depth;
    while (running > 0) {
      NetEvent events[64];
      const size_t count = transport_->Poll(absl::MakeSpan(events));
      if (count > 0) now = clock_.now_us();
      for (size_t e = 0; e < count; ++e) {
        if (events[e].result != BlockResult::kOk) std::exit(1);
        bytes += job.page;
        if (latencies.size() < latencies.capacity())
          latencies.push_back(now - started[events[e].token]);
        if (now - begin < kSecondsUs) {
          start(events[e].token);
        } else {
          --running;
        }
      }
    }
    Print(tls, job, bytes, now - begin, &latencies);
  }

 private:
  std::vector<Segment> SegmentsOf(const Job& job, size_t index) const {
    const uint64_t base = child_.region().address + index * 2 * job.page;
    if (job.shape == Shape::kPages) return {{0, base, 0, job.page}};
    std::vector<Segment> rows;
    for (uint64_t at = 0; at < job.page; at += 256) rows.push_back({0, base + at * 2, at, 256});
    return rows;
  }

  static void Print(const char* tls, const Job& job, uint64_t bytes, uint64_t us,
                    std::vector<uint64_t>* latencies) {
    std::sort(latencies->begin(), latencies->end());
    const auto at = [&](double q) {
      return (*latencies)[static_cast<size_t>(q * static_cast<double>(latencies->size() - 1))];
    };
    std::printf("%-6s %-10s %8zu B depth %2zu: %8.1f MB/s  p50 %6lu us  p99 %6lu us\n", tls,
                job.name, job.page, job.depth, static_cast<double>(bytes) / static_cast<double>(us),
                at(0.5), at(0.99));
    std::fflush(stdout);
  }

  UcxTransport* transport_;
  const UcxChild& child_;
  SteadyClock clock_;
};

void PeerCost(const char* tls, UcxTransport* transport) {
  SteadyClock clock;
  const size_t descriptors = OpenDescriptors();
  const double resident = ResidentMiB();
  constexpr int kHellos = 8;
  const uint64_t begin = clock.now_us();
  for (int i = 0; i < kHellos; ++i) {
    uint64_t cookie = 0;
    if (transport->MakeHello(&cookie).empty()) std::exit(1);
  }
  std::printf("%-6s a peer: %.1f ms to make, %.1f descriptors, %.2f MiB when idle\n", tls,
              static_cast<double>(clock.now_us() - begin) / 1000 / kHellos,
              static_cast<double>(OpenDescriptors() - descriptors) / kHellos,
              (ResidentMiB() - resident) / kHellos);
}

int RunTls(const std::string& tls) {
  UcxOptions options;
  options.tls = tls;
  options.peers_max = 64;
  auto transport = UcxTransport::Create(options);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s: %s\n", tls.c_str(), transport.status().ToString().c_str());
    return 1;
  }
  const char* name = tls.empty() ? "any" : tls.c_str();
  std::printf("%-6s UCX %s\n", name, (*transport)->Describe().c_str());
  PeerCost(name, transport->get());
  auto child = UcxChild::Start({.tls = tls, .memory_bytes = 64 << 20}, transport->get());
  if (child == nullptr) return 1;
  Bench bench(transport->get(), *child);
  for (size_t page : {4096, 256 * 1024, 1024 * 1024}) {
    bench.Run(name, {"pull", false, Shape::kPages, page, kDepth});
    bench.Run(name, {"push", true, Shape::kPages, page, kDepth});
  }
  bench.Run(name, {"pull", false, Shape::kPages, 4096, 1});
  bench.Run(name, {"push", true, Shape::kPages, 4096, 1});
  bench.Run(name, {"pull rows", false, Shape::kRows, 256 * 1024, kDepth});
  bench.Run(name, {"push rows", true, Shape::kRows, 256 * 1024, kDepth});
  return 0;
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) {
  int exit_code = 0;
  if (crumb::RunUcxChild(argc, argv, &exit_code)) return exit_code;
  std::vector<std::string> list(argv + 1, argv + argc);
  if (list.empty()) list = {"tcp", "posix", ""};
  for (const std::string& tls : list) {
    const int failed = crumb::RunTls(tls == "any" ? "" : tls);
    if (failed != 0) return failed;
  }
  return 0;
}
