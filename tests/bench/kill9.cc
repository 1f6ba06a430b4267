// kill -9 at random moments: a real crumbd with pools too small for the data, a client over UCX
// that puts, gets and deletes, SIGKILL, restart, and a look at everything that may or must come
// back. Prints figures; exit 0 only if no wrong byte came, all that was answered durable came back,
// and every start was ready in time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "crumb/client.h"
#include "tests/bench/kill9_model.h"
#include "tests/support/child_daemon.h"

namespace crumb {
namespace {

using client::Block;
using client::Client;
using client::Code;
using client::Completion;
using client::Ticket;

struct Settings {
  std::string crumbd, parent = "/tmp", transport = "ucx";
  uint32_t cycles = 200;
  uint64_t seed = 1;
  uint64_t fill_bytes = 4ull << 30;
  double ready_seconds_max = 2.0;
};

constexpr uint32_t kDepth = 16;
constexpr uint32_t kPutsPerCycle = 240;
constexpr uint32_t kRecent = 48;
constexpr uint32_t kStartMs = 30'000;
constexpr uint32_t kPatienceMs = 60'000;
constexpr double kDistanceMax = 0.5;

struct Kind {
  const char* name;
  bool lossy;
  uint64_t bytes;
  uint64_t keys;
};
// Odd sizes on purpose: pages that do not fill their last 4 KiB, and one of several pages.
constexpr Kind kKinds[] = {
    {"small", false, 5'000, 1'500}, {"large", false, 70'001, 700}, {"lossy", true, 32'768, 700}};
constexpr size_t kKindCount = std::size(kKinds);

client::LayoutSpec SpecOf(const Kind& kind) {
  client::LayoutSpec spec;
  spec.name = kind.name;
  spec.model = absl::StrCat("kill9-", kind.name);
  spec.revision = "1";
  client::LayerGroup& group = spec.groups.emplace_back();
  group.layer_ids = {0};
  if (kind.lossy) {
    spec.page_tokens = 32;
    group.kv_heads = 2;
    group.k_dim = group.v_dim = 64;
    group.layer_ids = {0, 1};
    spec.codec = "crumb-int4";
    return spec;
  }
  spec.dtype = "opaque";
  spec.weights_dtype = "none";
  spec.rope_kind = "none";
  spec.codec = "raw";
  spec.page_tokens = 1;
  group.kind = "mha";
  group.kv_heads = 1;
  group.k_dim = static_cast<uint32_t>(kind.bytes);
  return spec;
}

uint64_t KeyId(size_t kind, uint64_t number) { return uint64_t{kind + 1} << 32 | number; }

struct Figures {
  uint64_t puts = 0, durable = 0, gets = 0, hits = 0, misses = 0, deletes = 0, unknown = 0;
  uint64_t refused = 0, checked = 0, durable_checked = 0, killed_starting = 0, nvme_hits = 0;
  uint64_t ready_us_max = 0;
  std::map<std::string, uint64_t> accusations;
  std::vector<std::string> first;

  void Accuse(uint64_t key, const std::string& what, const std::string& history = "") {
    if (what.empty()) return;
    ++accusations[what.substr(0, what.find(':'))];
    if (first.size() < 10) {
      first.push_back(
          absl::StrCat("key ", absl::Hex(key), ": ", what, "; life:verb=answer", history));
    }
  }
};

// One daemon directory with its configuration.
class Place {
 public:
  Place(const Settings& settings, uint64_t dram_bytes, uint64_t nvme_bytes)
      : settings_(settings), dir_(settings.parent) {
    std::ofstream(ConfigFile()) << "data_dir: " << dir_.path() << "/data\n"
                                << "listen:\n  grpc: 127.0.0.1:0\n  http: 127.0.0.1:0\n"
                                << "  socket: " << dir_.path() << "/s\n"
                                << "pool:\n  dram_bytes: " << dram_bytes << "\n"
                                << "nvme:\n  bytes: " << nvme_bytes << "\n"
                                << "  segment_bytes: " << segment_bytes(nvme_bytes) << "\n"
                                << "log:\n  level: warning\n";
  }
  absl::StatusOr<std::unique_ptr<ChildDaemon>> Spawn() {
    return ChildDaemon::Spawn({.program = settings_.crumbd,
                               .config_file = ConfigFile(),
                               .log_file = dir_.path() + "/log"});
  }
  std::string Server() const { return "unix:" + dir_.path() + "/s"; }
  std::string LogTail() const {
    std::ifstream file(dir_.path() + "/log");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return text.size() > 2000 ? text.substr(text.size() - 2000) : text;
  }

 private:
  static uint64_t segment_bytes(uint64_t nvme_bytes) {
    return nvme_bytes >= (4ull << 30) ? 64ull << 20 : 8ull << 20;
  }
  std::string ConfigFile() const { return dir_.path() + "/crumbd.yaml"; }
  const Settings& settings_;
  ScratchDir dir_;
};

std::unique_ptr<Client> ConnectTo(const Settings& settings, const std::string& server) {
  client::Options options;
  options.server = server;
  options.data_plane =
      settings.transport == "ucx" ? client::DataPlane::kUcx : client::DataPlane::kGrpc;
  options.deadline_ms = 20'000;
  options.client_name = "kill9";
  std::unique_ptr<Client> out;
  const client::Status status = Client::Connect(options, &out);
  if (!status.ok()) std::fprintf(stderr, "connect: %s\n", status.message.c_str());
  return out;
}

enum class Verb : uint8_t { kPut, kGet, kDelete };
constexpr const char* kVerbs[] = {"put", "get", "delete"};

// The client's side of one life of the daemon.
class Worker {
 public:
  struct Books {
    Figures* figures;
    std::vector<std::vector<KeyModel>>* models;
    uint32_t life;
  };
  Worker(Client* client, Rng* rng, const Books& books)
      : client_(client),
        rng_(rng),
        figures_(books.figures),
        models_(books.models),
        life_(books.life),
        lanes_(kDepth) {}

  bool Start() {
    for (size_t kind = 0; kind < kKindCount; ++kind) {
      Set& set = sets_[kind];
      client::Status status = client_->RegisterLayout(SpecOf(kKinds[kind]), &set.layout);
      if (status.ok()) {
        CRUMB_CHECK(set.layout.raw_bytes.at(0) == kKinds[kind].bytes);
        set.memory.resize(kDepth * kKinds[kind].bytes);
        status = client_->LendPages(set.layout, set.memory.data(), set.memory.size(),
                                    kKinds[kind].bytes, &set.region_set);
      }
      if (!status.ok()) {
        std::fprintf(stderr, "%s: %s\n", kKinds[kind].name, status.message.c_str());
        return false;
      }
    }
    return true;
  }

  // Every key that may or must be there.
  bool CheckAll() {
    for (size_t kind = 0; kind < kKindCount; ++kind) {
      std::vector<KeyModel>& keys = (*models_)[kind];
      for (uint64_t number = 0; number < keys.size(); ++number) {
        if (keys[number].possible.empty() && rng_->Below(4) != 0) continue;
        ++figures_->checked;
        if (keys[number].must_hit) ++figures_->durable_checked;
        while (!Submit(Verb::kGet, kind, number)) {
          if (!Progress(kPatienceMs)) return false;
        }
      }
    }
    return Finish();
  }

  // Mixed requests until `stop_us`; those in flight then are left alone.
  void Load(uint64_t stop_us) {
    uint32_t puts = 0;
    const SteadyClock clock;
    while (clock.now_us() < stop_us && client_->connected()) {
      const uint64_t dice = rng_->Below(10);
      Verb verb = dice < 5 ? Verb::kPut : (dice < 9 ? Verb::kGet : Verb::kDelete);
      if (verb == Verb::kPut && puts >= kPutsPerCycle) verb = Verb::kGet;
      size_t kind = rng_->Below(kKindCount);
      uint64_t number = rng_->Below(kKinds[kind].keys);
      // What was put lately is asked for most: so gets and deletes meet puts under way.
      if (verb != Verb::kPut && !recent_.empty() && rng_->Chance(3, 4)) {
        std::tie(kind, number) = recent_[rng_->Below(recent_.size())];
      }
      if ((*models_)[kind][number].busy) continue;
      if (Submit(verb, kind, number)) {
        if (verb == Verb::kPut) Remember(kind, number, puts++);
        Progress(0);
      } else {
        Progress(1);
      }
    }
  }

  // After the kill: what was in flight must end, as unknown.
  bool Finish() {
    while (client_->in_flight() > 0) {
      if (!Progress(kPatienceMs)) return false;
    }
    return true;
  }

 private:
  struct Set {
    client::Layout layout;
    uint32_t region_set = 0;
    std::vector<uint8_t> memory;
  };
  struct Lane {
    Ticket ticket = 0;
    Verb verb = Verb::kGet;
    size_t kind = 0;
    uint64_t number = 0;
    uint32_t generation = 0;
    bool durable = false;
  };

  void Remember(size_t kind, uint64_t number, uint32_t put) {
    if (recent_.size() < kRecent) recent_.emplace_back();
    recent_[put % kRecent % recent_.size()] = {kind, number};
  }

  MutableBytes SlotOf(size_t lane, size_t kind) {
    const uint64_t bytes = kKinds[kind].bytes;
    return {sets_[kind].memory.data() + lane * bytes, bytes};
  }

  // False: no free lane, or refused.
  bool Submit(Verb verb, size_t kind, uint64_t number) {
    size_t index = 0;
    while (index < lanes_.size() && lanes_[index].ticket != 0) ++index;
    if (index == lanes_.size()) return false;
    Lane& lane = lanes_[index];
    KeyModel& model = (*models_)[kind][number];
    lane = {.ticket = 0, .verb = verb, .kind = kind, .number = number};
    const std::string name = absl::StrCat(kKinds[kind].name, "/", number);
    Block block;
    block.key = name;
    block.slot = static_cast<uint32_t>(index);
    const std::vector<Block> blocks = {block};
    client::RequestOptions options;
    client::Status status;
    if (verb == Verb::kPut) {
      lane.generation = ++model.last_put;
      lane.durable = options.durable = rng_->Chance(1, 2);
      const MutableBytes slot = SlotOf(index, kind);
      if (kKinds[kind].lossy) {
        FillBf16(KeyId(kind, number), lane.generation, slot);
      } else {
        FillValue(KeyId(kind, number), lane.generation, slot);
      }
      status = client_->SubmitPut(sets_[kind].layout, sets_[kind].region_set, blocks, options,
                                  &lane.ticket);
    } else if (verb == Verb::kGet) {
      status = client_->SubmitGet(sets_[kind].layout, sets_[kind].region_set, blocks, options,
                                  &lane.ticket);
    } else {
      status = client_->SubmitDelete(sets_[kind].layout, blocks, &lane.ticket);
    }
    if (!status.ok()) return false;
    model.busy = true;
    return true;
  }

  // False: nothing came in that time though something is due.
  bool Progress(uint32_t timeout_ms) {
    done_.clear();
    const size_t count = client_->Drain(timeout_ms, &done_);
    for (const Completion& completion : done_) {
      for (size_t i = 0; i < lanes_.size(); ++i) {
        if (lanes_[i].ticket == completion.ticket) Learn(i, completion.results.at(0));
      }
    }
    if (count == 0 && timeout_ms >= kPatienceMs) {
      std::fprintf(stderr, "requests hang\n");
      return false;
    }
    return true;
  }

  void Learn(size_t index, const client::Result& result) {
    Lane lane = lanes_[index];
    lanes_[index].ticket = 0;
    KeyModel& model = (*models_)[lane.kind][lane.number];
    model.busy = false;
    const uint64_t key = KeyId(lane.kind, lane.number);
    if (result.code == Code::kUnavailable) ++figures_->unknown;
    if (result.code == Code::kCorrupt) return figures_->Accuse(key, "a hit did not match its sum");
    model.Note(absl::StrCat(life_, ":", kVerbs[static_cast<size_t>(lane.verb)],
                            lane.verb == Verb::kPut ? absl::StrCat(lane.generation) : "",
                            lane.durable ? "d=" : "=", client::ToString(result.code)));
    switch (lane.verb) {
      case Verb::kPut:
        ++figures_->puts;
        if (result.code == Code::kBusy || result.code == Code::kNoSpace) ++figures_->refused;
        if (lane.durable && (result.code == Code::kOk || result.code == Code::kExists)) {
          ++figures_->durable;
        }
        return figures_->Accuse(key, model.OnPut(lane.generation, result.code, lane.durable),
                                model.history);
      case Verb::kDelete:
        ++figures_->deletes;
        return figures_->Accuse(key, model.OnDelete(result.code), model.history);
      case Verb::kGet:
        return LearnGet(index, lane, result);
    }
  }

  void LearnGet(size_t index, const Lane& lane, const client::Result& result) {
    KeyModel& model = (*models_)[lane.kind][lane.number];
    const uint64_t key = KeyId(lane.kind, lane.number);
    ++figures_->gets;
    if (result.code == Code::kMiss) ++figures_->misses;
    if (result.code != Code::kOk)
      return figures_->Accuse(key, model.OnGet(result.code, 0), model.history);
    ++figures_->hits;
    figures_->nvme_hits += result.tier == client::Tier::kNvme ? 1 : 0;
    const Bytes value = SlotOf(index, lane.kind);
    if (!kKinds[lane.kind].lossy) {
      return figures_->Accuse(key, model.OnGet(Code::kOk, GenerationOf(key, value)), model.history);
    }
    uint32_t nearest = 0;
    for (uint32_t generation = 1; generation <= model.last_put; ++generation) {
      if (DistanceBf16(key, generation, value) < kDistanceMax) nearest = generation;
    }
    figures_->Accuse(key, model.OnGet(Code::kOk, nearest), model.history);
    if (nearest != 0) figures_->Accuse(key, model.OnSeen(nearest, Xxh3(value)), model.history);
  }

  Client* client_;
  Rng* rng_;
  Figures* figures_;
  std::vector<std::vector<KeyModel>>* models_;
  uint32_t life_;
  std::array<Set, kKindCount> sets_;
  std::vector<Lane> lanes_;
  std::vector<Completion> done_;
  std::vector<std::pair<size_t, uint64_t>> recent_;
};

// Starts the daemon; now and then kills it while it starts.
std::unique_ptr<ChildDaemon> StartDaemon(Place* place, Rng* rng, Figures* figures) {
  const SteadyClock clock;
  for (;;) {
    auto daemon = place->Spawn();
    CRUMB_CHECK(daemon.ok());
    if (rng != nullptr && rng->Chance(1, 10)) {
      const uint64_t until_us = clock.now_us() + rng->Below(60'000);
      const bool ready =
          (*daemon)->WaitReady(static_cast<uint32_t>((until_us - clock.now_us()) / 1000)).ok();
      static_cast<void>(ready);
      (*daemon)->Kill();
      ++figures->killed_starting;
      continue;
    }
    const absl::Status status = (*daemon)->WaitReady(kStartMs);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n%s\n", std::string(status.message()).c_str(),
                   place->LogTail().c_str());
      return nullptr;
    }
    figures->ready_us_max = std::max(figures->ready_us_max, (*daemon)->ready_us());
    return *std::move(daemon);
  }
}

bool RunCycles(const Settings& settings, Figures* figures) {
  Place place(settings, 8ull << 20, 3ull << 30);
  Rng rng(settings.seed);
  std::vector<std::vector<KeyModel>> models(kKindCount);
  for (size_t kind = 0; kind < kKindCount; ++kind) models[kind].resize(kKinds[kind].keys);
  const SteadyClock clock;
  for (uint32_t cycle = 0; cycle <= settings.cycles; ++cycle) {
    std::unique_ptr<ChildDaemon> daemon = StartDaemon(&place, &rng, figures);
    if (daemon == nullptr) return false;
    std::unique_ptr<Client> client = ConnectTo(settings, place.Server());
    if (client == nullptr) return false;
    Worker worker(client.get(), &rng, {figures, &models, cycle});
    if (!worker.Start() || !worker.CheckAll()) return false;
    if (cycle == settings.cycles) break;  // the last life only looks
    worker.Load(clock.now_us() + rng.Below(300'000));
    daemon->Kill();
    if (!worker.Finish()) return false;
    if (cycle % 20 == 19) {
      std::printf("%u kills, %llu durable answers, %zu accusations\n", cycle + 1,
                  static_cast<unsigned long long>(figures->durable), figures->accusations.size());
      std::fflush(stdout);
    }
  }
  return true;
}

// Fills a log with durable 256 KiB values, kills, and measures the next start.
class BigLog {
 public:
  BigLog(const Settings& settings, Figures* figures) : settings_(settings), figures_(figures) {}

  bool Run() {
    Place place(settings_, 64ull << 20, settings_.fill_bytes + (1ull << 30));
    std::unique_ptr<ChildDaemon> daemon = StartDaemon(&place, nullptr, figures_);
    if (daemon == nullptr || !Open(place) || !Each(Verb::kPut, 1)) return false;
    daemon->Kill();
    client_.reset();
    daemon = StartDaemon(&place, nullptr, figures_);
    if (daemon == nullptr) return false;
    ready_us_ = daemon->ready_us();
    return Open(place) && Each(Verb::kGet, 1);
  }
  uint64_t ready_us() const { return ready_us_; }
  uint64_t stored_bytes() const { return stored_ * kBytes; }

 private:
  static constexpr uint64_t kBytes = 256 * 1024;

  bool Open(const Place& place) {
    client_ = ConnectTo(settings_, place.Server());
    if (client_ == nullptr) return false;
    const Kind kind{"big", false, kBytes, 0};
    memory_.resize(kDepth * kBytes);
    client::Status status = client_->RegisterLayout(SpecOf(kind), &layout_);
    if (status.ok()) {
      status = client_->LendPages(layout_, memory_.data(), memory_.size(), kBytes, &set_);
    }
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message.c_str());
    return status.ok();
  }

  bool Each(Verb verb, uint64_t first) {
    const uint64_t last = first + settings_.fill_bytes / kBytes;
    std::array<uint64_t, kDepth> keys{};
    std::array<Ticket, kDepth> tickets{};
    std::vector<Completion> done;
    for (uint64_t next = first; next < last || client_->in_flight() > 0;) {
      for (uint32_t lane = 0; lane < kDepth && next < last; ++lane) {
        if (tickets[lane] != 0) continue;
        keys[lane] = next;
        const MutableBytes slot(memory_.data() + lane * kBytes, kBytes);
        if (verb == Verb::kPut) FillValue(next, 1, slot);
        const std::string name = absl::StrCat("big/", next);
        Block block;
        block.key = name;
        block.slot = lane;
        client::RequestOptions options;
        options.durable = verb == Verb::kPut;
        const client::Status status =
            verb == Verb::kPut
                ? client_->SubmitPut(layout_, set_, {block}, options, &tickets[lane])
                : client_->SubmitGet(layout_, set_, {block}, options, &tickets[lane]);
        if (!status.ok()) break;
        ++next;
      }
      done.clear();
      if (client_->Drain(kPatienceMs, &done) == 0) return false;
      for (const Completion& completion : done) {
        for (uint32_t lane = 0; lane < kDepth; ++lane) {
          if (tickets[lane] != completion.ticket) continue;
          tickets[lane] = 0;
          Learn(verb, keys[lane], completion.results.at(0).code,
                {memory_.data() + lane * kBytes, kBytes});
        }
      }
    }
    return true;
  }

  void Learn(Verb verb, uint64_t key, Code code, Bytes value) {
    if (verb == Verb::kPut) {
      if (code == Code::kOk) {
        ++stored_;
      } else {
        figures_->Accuse(key, absl::StrCat("a durable put was refused: ", client::ToString(code)));
      }
    } else if (code != Code::kOk) {
      figures_->Accuse(key, absl::StrCat("a durable page is gone: ", client::ToString(code)));
    } else if (GenerationOf(key, value) != 1) {
      figures_->Accuse(key, "wrong bytes");
    }
  }

  const Settings& settings_;
  Figures* figures_;
  std::unique_ptr<Client> client_;
  client::Layout layout_;
  uint32_t set_ = 0;
  std::vector<uint8_t> memory_;
  uint64_t stored_ = 0;
  uint64_t ready_us_ = 0;
};

int Report(const Settings& settings, const Figures& figures, const BigLog& big, bool whole) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "puts %llu (durable %llu, refused %llu), gets %llu (hits %llu, from NVMe %llu, "
      "misses %llu), deletes %llu, unanswered at the kill %llu\n",
      number(figures.puts), number(figures.durable), number(figures.refused), number(figures.gets),
      number(figures.hits), number(figures.nvme_hits), number(figures.misses),
      number(figures.deletes), number(figures.unknown));
  std::printf(
      "after restarts: %llu keys looked at, %llu of them durable; killed %llu times while "
      "starting\n",
      number(figures.checked), number(figures.durable_checked), number(figures.killed_starting));
  for (const auto& [what, count] : figures.accusations) {
    std::printf("ACCUSED %llu times: %s\n", number(count), what.c_str());
  }
  for (const std::string& one : figures.first) std::printf("  %s\n", one.c_str());
  const double ready = static_cast<double>(std::max(figures.ready_us_max, big.ready_us())) / 1e6;
  const bool held = whole && figures.accusations.empty() && ready < settings.ready_seconds_max &&
                    (settings.cycles == 0 || (figures.durable_checked > 0 && figures.unknown > 0));
  std::printf(
      "%s: %u kills, wrong bytes or lost durable pages: %zu kinds, slowest ready %.2f s "
      "(limit %.1f), ready %.2f s with %.2f GiB stored\n",
      held ? "ok" : "FAIL", settings.cycles, figures.accusations.size(), ready,
      settings.ready_seconds_max, static_cast<double>(big.ready_us()) / 1e6,
      static_cast<double>(big.stored_bytes()) / (1ull << 30));
  return held ? 0 : 1;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("SIGKILL at random moments, and what comes back");
  app.add_option("--crumbd", settings.crumbd, "The daemon")->required();
  app.add_option("--cycles", settings.cycles, "Kills");
  app.add_option("--seed", settings.seed, "Of everything random but the scheduler");
  app.add_option("--fill-bytes", settings.fill_bytes, "Stored before the big restart; 0: none");
  app.add_option("--dir", settings.parent, "Where the data directories are made");
  app.add_option("--transport", settings.transport)->check(CLI::IsMember({"ucx", "grpc"}));
  app.add_option("--ready-seconds-max", settings.ready_seconds_max);
  CLI11_PARSE(app, argc, argv);
  Figures figures;
  BigLog big(settings, &figures);
  const bool whole = (settings.cycles == 0 || RunCycles(settings, &figures)) &&
                     (settings.fill_bytes == 0 || big.Run());
  return Report(settings, figures, big, whole);
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::Main(argc, argv); }
