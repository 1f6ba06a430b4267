// What the parts of kill9 share: its settings, the pages that are put, what was seen, and what all
// clients know of all keys.
#ifndef CRUMB_TESTS_BENCH_KILL9_BOOKS_H_
#define CRUMB_TESTS_BENCH_KILL9_BOOKS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cachesvc/base/rng.h"
#include "crumb/client.h"
#include "tests/bench/kill9_model.h"
#include "tests/bench/kill9_place.h"
#include "tests/support/child_daemon.h"

namespace crumb {

struct Settings {
  std::string crumbd, parent = "/tmp", volume, transport = "ucx";
  uint32_t cycles = 200;
  uint32_t clients = 1;
  uint32_t load_ms = 300;       // at most, of each life
  uint32_t flush_one_in = 0;    // lives with a flush of everything; 0: none
  uint32_t look_at_one_in = 1;  // of the keys that the last life did not touch
  uint32_t deadline_ms = 20'000;
  uint64_t seed = 1;
  uint64_t nvme_bytes = 3ull << 30, segment_bytes = 8ull << 20;
  uint64_t fill_bytes = 4ull << 30;
  bool reclaims = false;     // the log is smaller than what is put
  bool fill_volume = false;  // others fill the volume and leave it
  double ready_seconds_max = 2.0;
};

inline constexpr uint32_t kDepth = 16;
inline constexpr uint32_t kPutsPerCycle = 240;
inline constexpr uint32_t kRecent = 48;
inline constexpr uint32_t kStartMs = 30'000;
inline constexpr uint32_t kPatienceMs = 60'000;
inline constexpr double kDistanceMax = 0.5;

struct Kind {
  const char* name;
  bool lossy;
  uint64_t bytes;
  uint64_t keys;
};
// Odd sizes on purpose: pages that do not fill their last 4 KiB, and one of several pages.
inline constexpr Kind kKinds[] = {
    {"small", false, 5'000, 1'500}, {"large", false, 70'001, 700}, {"lossy", true, 32'768, 700}};
inline constexpr size_t kKindCount = std::size(kKinds);

client::LayoutSpec SpecOf(const Kind& kind);

inline uint64_t KeyId(size_t kind, uint64_t number) { return uint64_t{kind + 1} << 32 | number; }

struct Figures {
  uint64_t puts = 0, durable = 0, gets = 0, hits = 0, misses = 0, deletes = 0, unknown = 0;
  uint64_t refused = 0, checked = 0, durable_checked = 0, killed_starting = 0, nvme_hits = 0;
  uint64_t hangs = 0, flushes = 0, flushes_unknown = 0, full_starts = 0;
  uint64_t ready_us_max = 0, answer_us_max = 0;
  std::map<std::string, uint64_t> accusations;
  std::vector<std::string> first;

  void Accuse(uint64_t key, const std::string& what, const std::string& history = "");
  void Take(const Figures& from);
};

// What all clients of all lives share.
class Books {
 public:
  Books(const Settings& settings, Figures* figures) : settings_(settings), figures_(figures) {
    KeyModel empty;
    empty.reclaims = settings.reclaims;
    for (size_t kind = 0; kind < kKindCount; ++kind) models_[kind].resize(kKinds[kind].keys, empty);
  }
  void OnKill() {
    for (auto& keys : models_) {
      for (KeyModel& model : keys) model.OnKill();
    }
  }
  const Settings& settings() const { return settings_; }
  // Each key belongs to one client, and with it its model.
  KeyModel& model(size_t kind, uint64_t number) { return models_[kind][number]; }
  uint64_t Tick() { return ++now_; }
  // Before an answer about `model` is judged.
  void Judge(uint64_t asked, KeyModel* model) {
    const std::lock_guard<std::mutex> lock(mutex_);
    model->OnFlushes(flushes_, asked, Tick());
    if (settings_.reclaims) model->OnWritten(written_, DurableBytes());
  }
  uint64_t written() const { return written_; }
  void Wrote(uint64_t bytes) { written_ += bytes; }
  size_t BeginFlush() {
    const std::lock_guard<std::mutex> lock(mutex_);
    flushes_.push_back({.began = Tick()});
    return flushes_.size() - 1;
  }
  void EndFlush(size_t flush, bool done) {
    const std::lock_guard<std::mutex> lock(mutex_);
    flushes_[flush].over = Tick();
    flushes_[flush].done = done;
    ++(done ? figures_->flushes : figures_->flushes_unknown);
  }
  void Add(const std::function<void(Figures*)>& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(figures_);
  }

 private:
  // A page is written when it is put or evicted, at most twice; some segments wait for their turn.
  uint64_t DurableBytes() const { return (settings_.nvme_bytes - 4 * settings_.segment_bytes) / 2; }

  const Settings& settings_;
  std::array<std::vector<KeyModel>, kKindCount> models_;
  std::mutex mutex_;
  Figures* figures_;                // under the mutex while clients run
  std::vector<FlushSpan> flushes_;  // likewise
  std::atomic<uint64_t> now_{0}, written_{0};
};

enum class Verb : uint8_t { kPut, kGet, kDelete };
inline constexpr const char* kVerbs[] = {"put", "get", "delete"};

// Null: it said why.
std::unique_ptr<client::Client> ConnectTo(const Settings& settings, const std::string& server);
// Starts the daemon; with `rng` now and then kills it while it starts. Null: it said why.
std::unique_ptr<ChildDaemon> StartDaemon(Place* place, Rng* rng, Figures* figures);

}  // namespace crumb

#endif  // CRUMB_TESTS_BENCH_KILL9_BOOKS_H_
