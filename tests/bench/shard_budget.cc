// What the shard thread spends on a page, and how many of its bytes it reads: gets and puts over
// mapped memory in batches of 32. CPU time is the thread's own, by the kernel's clock of it. The
// bytes are those of messages: pages are copied and hashed by pool threads, so what the shard
// touches of a page is its part of a request and of a reply, its header and its entries.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/wire.h"
#include "tests/bench/crumb_peer.h"

namespace crumb::bench {
namespace {

constexpr int kRounds = 5;
constexpr uint32_t kBatch = 32;
constexpr double kGoalUs = 3.0;  // docs/architecture.md: what the shard may spend on a page

// Seconds that the threads of this name ran; negative if there is none.
double CpuSecondsOf(pid_t pid, const std::string& name) {
  double seconds = -1;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::string comm;
    std::ifstream(task.path() / "comm") >> comm;
    uint64_t ran_ns = 0;
    std::ifstream(task.path() / "schedstat") >> ran_ns;
    if (comm != name) continue;
    seconds = std::max(seconds, 0.0) + static_cast<double>(ran_ns) / 1e9;
  }
  return seconds;
}

int Run(Settings settings) {
  const ScratchDir dir;
  const uint64_t bytes = 4 * LastLevelCacheBytes();
  const auto daemon = StartDaemon(settings, dir.path(), 2 * bytes + (256ull << 20));
  if (daemon == nullptr) return 1;
  CrumbPeer peer(settings, bytes / settings.value_bytes + 1, *daemon);
  std::printf("pages of %llu bytes over %s, batch %u, %u requests in flight\n",
              static_cast<unsigned long long>(settings.value_bytes), peer.plane().c_str(),
              settings.batch, settings.depth);
  for (const char* const verb : {"get", "put"}) {
    std::vector<double> shard_us, pool_us;
    double mib_per_s = 0;
    for (int round = 0; round < kRounds; ++round) {
      const double shard = CpuSecondsOf(daemon->pid(), "crumb-shard");
      const double pool = CpuSecondsOf(daemon->pid(), "crumb-pool");
      if (shard < 0 || pool < 0) {
        std::fprintf(stderr, "shard_budget: the daemon has no thread crumb-shard or crumb-pool\n");
        return 1;
      }
      const Tally tally = peer.Run(verb);
      const auto pages = static_cast<double>(tally.values);
      shard_us.push_back((CpuSecondsOf(daemon->pid(), "crumb-shard") - shard) * 1e6 / pages);
      pool_us.push_back((CpuSecondsOf(daemon->pid(), "crumb-pool") - pool) * 1e6 / pages);
      mib_per_s = std::max(mib_per_s, tally.mib_per_s);
    }
    std::sort(shard_us.begin(), shard_us.end());
    std::sort(pool_us.begin(), pool_us.end());
    const uint32_t message = (RequestBytes(kBatch, 1) + ReplyBytes(kBatch)) / kBatch;
    std::printf(
        "%s: shard %.2f us a page (%.2f-%.2f; goal %.1f), %u bytes of messages and %llu of header "
        "of %llu; pool threads %.1f us; best round %.0f MiB/s\n",
        verb, shard_us[kRounds / 2], shard_us.front(), shard_us.back(), kGoalUs, message,
        static_cast<unsigned long long>(kPageHeaderBytes),
        static_cast<unsigned long long>(settings.value_bytes), pool_us[kRounds / 2], mib_per_s);
  }
  return 0;
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) {
  crumb::bench::Settings settings;
  settings.batch = crumb::bench::kBatch;
  settings.depth = 4;
  CLI::App app("CPU of the shard thread per page");
  app.add_option("--crumbd", settings.crumbd, "The daemon's program")->required();
  app.add_option("--value-bytes", settings.value_bytes, "A multiple of 4096 (262144)")
      ->check(CLI::Range(4096u, 1u << 24));
  app.add_option("--depth", settings.depth, "Requests in flight (4)")->check(CLI::Range(1, 64));
  app.add_option("--seconds", settings.seconds, "Of each round (1)")->check(CLI::Range(0.1, 60.0));
  CLI11_PARSE(app, argc, argv);
  return crumb::bench::Run(settings);
}
