// The daemon beside Redis in one run: both filled with the same number of distinct values, at least
// four times the last-level cache; then rounds of the two in turn, one client, so many requests in
// flight, random keys, no miss allowed. Both clients touch every byte they get: ours by checking
// the page's hash, the other by a sum over its words. Puts: Redis overwrites random keys of its
// set, which is its best case; ours are new keys, so that each one evicts, because putting what is
// there already would be free. Prints each round, medians, spread and the ratio.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "tests/bench/crumb_peer.h"
#include "tests/bench/redis_peer.h"

namespace crumb::bench {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kMemoryMax = 2ull << 30;  // of either side

uint64_t SumOfWords(const uint8_t* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof(word));
    sum += word;
  }
  return sum;
}

class Theirs {
 public:
  Theirs(const Settings& settings, uint64_t keys, std::unique_ptr<RedisClient> client)
      : settings_(settings),
        keys_(keys),
        client_(std::move(client)),
        reply_(RedisClient::ReplyBytes(settings.value_bytes) + 8),
        values_(settings.depth * settings.value_bytes) {
    FillRandom(absl::MakeSpan(values_));
    for (uint64_t i = 0; i < keys_; ++i) {
      Stamp(i, Slot(0));
      CRUMB_CHECK(client_->SendSet(KeyOf(i), Slot(0)) && client_->ReceiveOk());
    }
  }

  Tally Run() {
    Tally tally;
    std::vector<double> sent(settings_.depth);
    const double begin = Now();
    uint64_t submitted = 0, done = 0;
    double now = begin;
    while (true) {
      const bool go_on = now - begin < settings_.seconds;
      if (!go_on && done == submitted) break;
      while (go_on && submitted - done < settings_.depth) {
        sent[submitted % settings_.depth] = Now();
        Send(submitted % settings_.depth);
        ++submitted;
      }
      Receive();
      now = Now();
      tally.latencies_us.push_back(static_cast<float>((now - sent[done % settings_.depth]) * 1e6));
      ++done;
    }
    tally.mib_per_s = static_cast<double>(done * settings_.value_bytes) / (now - begin) / (1 << 20);
    return tally;
  }
  uint64_t sum() const { return sum_; }

 private:
  MutableBytes Slot(uint64_t lane) {
    return absl::MakeSpan(values_).subspan(lane * settings_.value_bytes, settings_.value_bytes);
  }
  void Send(uint64_t lane) {
    const uint64_t key = rng_.Below(keys_);
    if (settings_.verb == "get") {
      CRUMB_CHECK(client_->SendGet(KeyOf(key)));
    } else {
      Stamp(key, Slot(lane));
      CRUMB_CHECK(client_->SendSet(KeyOf(key), Slot(lane)));
    }
  }
  void Receive() {
    if (settings_.verb != "get") {
      CRUMB_CHECK(client_->ReceiveOk());
      return;
    }
    const size_t at = client_->ReceiveValue(settings_.value_bytes, absl::MakeSpan(reply_));
    CRUMB_CHECK(at != 0);
    sum_ += SumOfWords(reply_.data() + at, settings_.value_bytes);
  }

  const Settings& settings_;
  const uint64_t keys_;
  std::unique_ptr<RedisClient> client_;
  std::vector<uint8_t> reply_, values_;
  Rng rng_{1};
  uint64_t sum_ = 0;
};

struct Rounds {
  std::vector<double> mib_per_s;
  std::vector<double> p50_us;
  void Add(const char* who, int round, Tally tally) {
    mib_per_s.push_back(tally.mib_per_s);
    p50_us.push_back(tally.Percentile(0.5));
    std::printf("round %d: %-6s %7.0f MiB/s, p50 %.1f us, p99 %.1f us\n", round, who,
                tally.mib_per_s, p50_us.back(), static_cast<double>(tally.Percentile(0.99)));
  }
  double Median(std::vector<double> values) const {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

void Report(const Settings& settings, const Rounds& ours, const Rounds& theirs) {
  const auto spread = [](const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return absl::StrCat(static_cast<int>(*low), "-", static_cast<int>(*high));
  };
  const double mine = ours.Median(ours.mib_per_s);
  if (theirs.mib_per_s.empty()) {
    std::printf("%s of %llu bytes, depth %u: %.0f MiB/s (%s), p50 %.1f us\n", settings.verb.c_str(),
                static_cast<unsigned long long>(settings.value_bytes), settings.depth, mine,
                spread(ours.mib_per_s).c_str(), ours.Median(ours.p50_us));
    return;
  }
  const double other = theirs.Median(theirs.mib_per_s);
  std::printf(
      "%s of %llu bytes, depth %u: crumb %.0f MiB/s (%s), redis %.0f MiB/s (%s), ratio %.2f\n",
      settings.verb.c_str(), static_cast<unsigned long long>(settings.value_bytes), settings.depth,
      mine, spread(ours.mib_per_s).c_str(), other, spread(theirs.mib_per_s).c_str(), mine / other);
}

int Run(const Settings& settings) {
  const uint64_t bytes = 4 * LastLevelCacheBytes();
  const uint64_t keys = bytes / settings.value_bytes + 1;
  if (bytes > kMemoryMax) {
    std::fprintf(stderr, "vs_redis: four times the last-level cache is over 2 GiB\n");
    return 77;
  }
  const ScratchDir dir;
  // Room for the set and what goes along with each page; puts beyond it evict.
  const auto daemon = StartDaemon(settings, dir.path(), 2 * bytes + (256ull << 20));
  if (daemon == nullptr) return 1;
  CrumbPeer ours(settings, keys, *daemon);
  std::unique_ptr<RedisServer> server;
  std::unique_ptr<Theirs> theirs;
  if (!settings.ours_alone) {
    auto started = RedisServer::Start(dir.path());
    if (!started.ok()) {
      std::printf("skipped: %s\n", std::string(started.status().message()).c_str());
      return absl::IsNotFound(started.status()) ? 77 : 1;
    }
    server = *std::move(started);
    auto client = settings.transport == "shm" ? RedisClient::ConnectUnix(server->socket())
                                              : RedisClient::ConnectTcp(server->port());
    CRUMB_CHECK(client.ok());
    theirs = std::make_unique<Theirs>(settings, keys, *std::move(client));
  }
  std::printf(
      "%llu distinct values of %llu bytes on each side; crumb over %s%s%s\n",
      static_cast<unsigned long long>(keys), static_cast<unsigned long long>(settings.value_bytes),
      ours.plane().c_str(), server == nullptr ? "" : ", redis ",
      server == nullptr ? ""
                        : absl::StrCat(server->version(), " over ",
                                       settings.transport == "shm" ? "a unix socket" : "tcp")
                              .c_str());
  Rounds mine, others;
  for (int round = 1; round <= kRounds; ++round) {
    mine.Add("crumb", round, ours.Run(settings.verb));
    if (theirs != nullptr) others.Add("redis", round, theirs->Run());
  }
  Report(settings, mine, others);
  return 0;
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) {
  crumb::bench::Settings settings;
  CLI::App app("Get or put beside Redis, in one run");
  app.add_option("--crumbd", settings.crumbd, "The daemon's program")->required();
  app.add_option("--transport", settings.transport, "shm: beside a unix socket; ucx: beside tcp")
      ->check(CLI::IsMember({"shm", "ucx"}));
  app.add_option("--verb", settings.verb, "get or put")->check(CLI::IsMember({"get", "put"}));
  app.add_option("--value-bytes", settings.value_bytes, "A multiple of 4096 (262144)")
      ->check(CLI::Range(4096u, 1u << 24));
  app.add_option("--depth", settings.depth, "Requests in flight (16)")->check(CLI::Range(1, 64));
  app.add_option("--batch", settings.batch, "Values per request of ours (1)")
      ->check(CLI::Range(1, 64));
  app.add_option("--spin-us", settings.spin_us, "How long our client polls before it sleeps (0)")
      ->check(CLI::Range(0, 1000));
  app.add_option("--seconds", settings.seconds, "Of each round (1)")->check(CLI::Range(0.1, 60.0));
  app.add_flag("--alone", settings.ours_alone, "Without Redis");
  CLI11_PARSE(app, argc, argv);
  return crumb::bench::Run(settings);
}
