// kill -9 at random moments: a real crumbd with pools too small for the data, clients that put, get
// and delete, flushes, SIGKILL, restart, and a look at everything that may or must come back.
// Prints figures; exit 0 only if no wrong byte came, all that was answered durable came back (of a
// log that reclaims: until it wrote half its size), nothing hung, the tier's files never took more
// than their cap, and every start was ready in time.
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/clock.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "client/src/admin.h"
#include "crumb/client.h"
#include "tests/bench/kill9_big_log.h"
#include "tests/bench/kill9_books.h"
#include "tests/support/child_daemon.h"

namespace crumb {
namespace {

using client::Block;
using client::Client;
using client::Code;
using client::Completion;
using client::Ticket;

// One client's side of one life of the daemon. A thread.
class Worker {
 public:
  struct Role {
    uint32_t life, number;  // of this client
    uint64_t seed;
  };
  Worker(std::unique_ptr<Client> client, const Role& role, Books* books)
      : client_(std::move(client)),
        rng_(role.seed),
        books_(books),
        life_(role.life),
        number_(role.number),
        lanes_(kDepth) {}

  const Figures& figures() const { return figures_; }

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

  // Every key that may or must be there, or those that the last life touched and a few.
  bool CheckAll() {
    for (size_t kind = 0; kind < kKindCount; ++kind) {
      for (uint64_t number = number_; number < kKinds[kind].keys; number += clients()) {
        KeyModel& model = books_->model(kind, number);
        if (model.possible.empty() && rng_.Below(4) != 0) continue;
        const bool fresh = model.touched + 1 >= life_;
        if (!fresh && rng_.Below(books_->settings().look_at_one_in) != 0) continue;
        ++figures_.checked;
        books_->Judge(books_->Tick(), &model);
        if (model.must_hit) ++figures_.durable_checked;
        while (!Submit(Verb::kGet, kind, number)) {
          if (!Progress(kPatienceMs)) return false;
        }
      }
    }
    return Finish();
  }

  // Mixed requests until the daemon is gone; those in flight then are left alone.
  void Load(const std::atomic<bool>& stop) {
    uint32_t puts = 0;
    while (!stop && client_->connected()) {
      const uint64_t dice = rng_.Below(10);
      Verb verb = dice < 5 ? Verb::kPut : (dice < 9 ? Verb::kGet : Verb::kDelete);
      if (verb == Verb::kPut && puts >= kPutsPerCycle) verb = Verb::kGet;
      size_t kind = rng_.Below(kKindCount);
      uint64_t number = rng_.Below(kKinds[kind].keys / clients()) * clients() + number_;
      // What was put lately is asked for most: so gets and deletes meet puts under way.
      if (verb != Verb::kPut && !recent_.empty() && rng_.Chance(3, 4)) {
        std::tie(kind, number) = recent_[rng_.Below(recent_.size())];
      }
      if (books_->model(kind, number).busy) continue;
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
    uint64_t asked = 0, asked_us = 0;
  };

  uint32_t clients() const { return books_->settings().clients; }

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
    KeyModel& model = books_->model(kind, number);
    lane = {.ticket = 0,
            .verb = verb,
            .kind = kind,
            .number = number,
            .asked = books_->Tick(),
            .asked_us = clock_.now_us()};
    const std::string name = absl::StrCat(kKinds[kind].name, "/", number);
    Block block;
    block.key = name;
    block.slot = static_cast<uint32_t>(index);
    const std::vector<Block> blocks = {block};
    client::RequestOptions options;
    client::Status status;
    if (verb == Verb::kPut) {
      lane.generation = ++model.last_put;
      lane.durable = options.durable = rng_.Chance(1, 2);
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
    model.touched = life_;
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
      ++figures_.hangs;
      return false;
    }
    return true;
  }

  void Learn(size_t index, const client::Result& result) {
    Lane lane = lanes_[index];
    lanes_[index].ticket = 0;
    KeyModel& model = books_->model(lane.kind, lane.number);
    model.busy = false;
    books_->Judge(lane.asked, &model);
    figures_.answer_us_max = std::max(figures_.answer_us_max, clock_.now_us() - lane.asked_us);
    if (result.code == Code::kTimeout) ++figures_.hangs;
    const uint64_t key = KeyId(lane.kind, lane.number);
    if (result.code == Code::kUnavailable) ++figures_.unknown;
    if (result.code == Code::kCorrupt) return figures_.Accuse(key, "a hit did not match its sum");
    model.Note(absl::StrCat(life_, ":", kVerbs[static_cast<size_t>(lane.verb)],
                            lane.verb == Verb::kPut ? absl::StrCat(lane.generation) : "",
                            lane.durable ? "d=" : "=", client::ToString(result.code)));
    switch (lane.verb) {
      case Verb::kPut:
        ++figures_.puts;
        if (result.code == Code::kBusy || result.code == Code::kNoSpace) ++figures_.refused;
        if (lane.durable && (result.code == Code::kOk || result.code == Code::kExists)) {
          ++figures_.durable;
        }
        return LearnPut(lane, result.code);
      case Verb::kDelete:
        ++figures_.deletes;
        return figures_.Accuse(key, model.OnDelete(result.code), model.history);
      case Verb::kGet:
        return LearnGet(index, lane, result);
    }
  }

  void LearnPut(const Lane& lane, Code code) {
    KeyModel& model = books_->model(lane.kind, lane.number);
    // At most: of two copies of their header and padding.
    books_->Wrote(kKinds[lane.kind].bytes + 8192);
    const bool durable = model.must_hit;
    // WHY: a page that was there already may lie in the segment that is reused next.
    const bool counts = lane.durable && !(books_->settings().reclaims && code == Code::kExists);
    figures_.Accuse(KeyId(lane.kind, lane.number), model.OnPut(lane.generation, code, counts),
                    model.history);
    if (!durable && model.must_hit) model.durable_bytes = books_->written();
  }

  void LearnGet(size_t index, const Lane& lane, const client::Result& result) {
    KeyModel& model = books_->model(lane.kind, lane.number);
    const uint64_t key = KeyId(lane.kind, lane.number);
    ++figures_.gets;
    if (result.code == Code::kMiss) ++figures_.misses;
    if (result.code != Code::kOk)
      return figures_.Accuse(key, model.OnGet(result.code, 0), model.history);
    ++figures_.hits;
    figures_.nvme_hits += result.tier == client::Tier::kNvme ? 1 : 0;
    const Bytes value = SlotOf(index, lane.kind);
    if (!kKinds[lane.kind].lossy) {
      return figures_.Accuse(key, model.OnGet(Code::kOk, GenerationOf(key, value)), model.history);
    }
    uint32_t nearest = 0;
    for (const auto& [generation, when] : model.possible) {
      if (DistanceBf16(key, generation, value) < kDistanceMax) nearest = generation;
    }
    // None that may come: which one is it?
    for (uint32_t generation = model.last_put; nearest == 0 && generation > 0; --generation) {
      if (DistanceBf16(key, generation, value) < kDistanceMax) nearest = generation;
    }
    figures_.Accuse(key, model.OnGet(Code::kOk, nearest), model.history);
    if (nearest != 0) figures_.Accuse(key, model.OnSeen(nearest, Xxh3(value)), model.history);
  }

  const SteadyClock clock_;
  std::unique_ptr<Client> client_;
  Rng rng_;
  Figures figures_;
  Books* books_;
  uint32_t life_, number_;
  std::array<Set, kKindCount> sets_;
  std::vector<Lane> lanes_;
  std::vector<Completion> done_;
  std::vector<std::pair<size_t, uint64_t>> recent_;
};

// A flush of everything at some moment of a life, while the clients go on.
void Flush(const Settings& settings, const std::string& server, uint32_t after_ms, Books* books) {
  ::poll(nullptr, 0, static_cast<int>(after_ms));
  client::ChannelOptions channel;
  channel.server = server;
  const auto admin = client::Admin::Open(channel, settings.deadline_ms);
  if (!admin.ok()) return;
  const size_t flush = books->BeginFlush();
  const SteadyClock clock;
  const uint64_t began_us = clock.now_us();
  const absl::Status status = (*admin)->Flush("", "");
  books->EndFlush(flush, status.ok());
  const uint64_t took_us = clock.now_us() - began_us;
  books->Add([&](Figures* figures) {
    figures->answer_us_max = std::max(figures->answer_us_max, took_us);
    if (absl::IsDeadlineExceeded(status)) ++figures->hangs;
  });
}

// One life of the daemon, until it is killed.
class Life {
 public:
  Life(const Place& place, uint32_t number, Rng* rng, Books* books)
      : settings_(books->settings()), place_(place), number_(number), rng_(rng), books_(books) {}

  bool Run(ChildDaemon* daemon) {
    if (!Each([](Worker* worker) { return worker->Start() && worker->CheckAll(); }, true)) {
      return false;
    }
    if (number_ == settings_.cycles) return true;  // the last life only looks
    std::atomic<bool> stop = false;
    std::thread flush;
    if (settings_.flush_one_in > 0 && rng_->Below(settings_.flush_one_in) == 0) {
      const auto after_ms = static_cast<uint32_t>(rng_->Below(settings_.load_ms));
      flush =
          std::thread([this, after_ms] { Flush(settings_, place_.Server(), after_ms, books_); });
    }
    const auto load_us = rng_->Below(settings_.load_ms * 1000ull);
    std::thread killer([&stop, daemon, load_us] {
      const timespec pause{.tv_sec = static_cast<time_t>(load_us / 1'000'000),
                           .tv_nsec = static_cast<long>(load_us % 1'000'000 * 1000)};
      ::ppoll(nullptr, 0, &pause, nullptr);
      daemon->Kill();
      stop = true;
    });
    const bool ended = Each(
        [&stop](Worker* worker) {
          worker->Load(stop);
          return worker->Finish();
        },
        false);
    killer.join();
    if (flush.joinable()) flush.join();
    return ended;
  }

 private:
  // Runs `work` for all clients at once. Figures are taken over with the last of them.
  bool Each(const std::function<bool(Worker*)>& work, bool first) {
    std::vector<std::thread> threads;
    std::atomic<bool> good = true;
    if (first) workers_.resize(settings_.clients);
    for (uint32_t i = 0; i < settings_.clients; ++i) {
      const uint64_t seed = rng_->Next();
      threads.emplace_back([this, &work, &good, i, seed, first] {
        if (first) {
          auto client = ConnectTo(settings_, place_.Server());
          if (client == nullptr) {
            good = false;
            return;
          }
          workers_[i] = std::make_unique<Worker>(
              std::move(client), Worker::Role{.life = number_, .number = i, .seed = seed}, books_);
        }
        if (!work(workers_[i].get())) good = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return good;
  }

 public:
  ~Life() {
    for (const auto& worker : workers_) {
      if (worker == nullptr) continue;
      books_->Add([&worker](Figures* figures) { figures->Take(worker->figures()); });
    }
  }

 private:
  const Settings& settings_;
  const Place& place_;
  const uint32_t number_;
  Rng* rng_;
  Books* books_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// Others take the volume's last block in a third of all lives, and leave it in another.
bool ShareVolume(const Settings& settings, uint32_t life, Rng* rng, Place* place) {
  if (!settings.fill_volume || life == 0) return false;
  const uint64_t dice = rng->Below(3);
  if (dice == 0) place->ClearVolume();
  if (dice != 1) return false;
  if (!place->FillVolume()) std::fprintf(stderr, "the volume could not be filled\n");
  return true;
}

struct Outcome {
  bool whole = false;  // it ran to its end
  uint64_t samples = 0, bytes_max = 0, files_max = 0;
};

Outcome RunCycles(const Settings& settings, Figures* figures) {
  Place place({.crumbd = settings.crumbd,
               .parent = settings.parent,
               .volume = settings.volume,
               .dram_bytes = 8ull << 20,
               .nvme_bytes = settings.nvme_bytes,
               .segment_bytes = settings.segment_bytes});
  Rng rng(settings.seed);
  Books books(settings, figures);
  const DiskSamples samples(place.NvmeFolder());
  Outcome outcome{.whole = true};
  for (uint32_t cycle = 0; cycle <= settings.cycles && outcome.whole; ++cycle) {
    const bool full = ShareVolume(settings, cycle, &rng, &place);
    const std::unique_ptr<ChildDaemon> daemon = StartDaemon(&place, &rng, figures);
    outcome.whole = daemon != nullptr && Life(place, cycle, &rng, &books).Run(daemon.get());
    books.OnKill();
    if (outcome.whole && full) ++figures->full_starts;
    if (cycle % 20 == 19) {
      std::printf("%u kills, %llu durable answers, %zu accusations\n", cycle + 1,
                  static_cast<unsigned long long>(figures->durable), figures->accusations.size());
      std::fflush(stdout);
    }
  }
  if (!outcome.whole) std::fprintf(stderr, "%s\n", place.LogTail().c_str());
  outcome.samples = samples.samples();
  outcome.bytes_max = samples.bytes_max();
  outcome.files_max = samples.files_max();
  return outcome;
}

int Report(const Settings& settings, const Figures& figures, const BigLog& big,
           const Outcome& outcome) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "puts %llu (durable %llu, refused %llu), gets %llu (hits %llu, from NVMe %llu, "
      "misses %llu), deletes %llu, flushes %llu (unanswered %llu), unanswered at the kill %llu\n",
      number(figures.puts), number(figures.durable), number(figures.refused), number(figures.gets),
      number(figures.hits), number(figures.nvme_hits), number(figures.misses),
      number(figures.deletes), number(figures.flushes), number(figures.flushes_unknown),
      number(figures.unknown));
  std::printf(
      "after restarts: %llu keys looked at, %llu of them durable; killed %llu times while "
      "starting; %llu lives began on a full volume\n",
      number(figures.checked), number(figures.durable_checked), number(figures.killed_starting),
      number(figures.full_starts));
  for (const auto& [what, count] : figures.accusations) {
    std::printf("ACCUSED %llu times: %s\n", number(count), what.c_str());
  }
  for (const std::string& one : figures.first) std::printf("  %s\n", one.c_str());
  const double ready = static_cast<double>(std::max(figures.ready_us_max, big.ready_us())) / 1e6;
  const bool room = outcome.bytes_max <= settings.nvme_bytes && outcome.files_max <= 1;
  const bool asked =
      settings.cycles == 0 ||
      (figures.durable_checked > 0 && figures.unknown > 0 && outcome.samples > 0 &&
       (!settings.fill_volume || figures.full_starts > 0) &&
       (settings.flush_one_in == 0 || figures.flushes + figures.flushes_unknown > 0));
  const bool held = outcome.whole && figures.accusations.empty() && figures.hangs == 0 && room &&
                    asked && ready < settings.ready_seconds_max;
  std::printf(
      "%s: %u kills, %llu hits compared, wrong bytes or lost durable pages: %zu kinds, hangs %llu "
      "(slowest answer %.2f s), at most %.2f of %.2f MiB on disk in %llu samples, slowest ready "
      "%.2f s (limit %.1f)",
      held ? "ok" : "FAIL", settings.cycles, number(figures.hits), figures.accusations.size(),
      number(figures.hangs), static_cast<double>(figures.answer_us_max) / 1e6,
      static_cast<double>(outcome.bytes_max) / (1 << 20),
      static_cast<double>(settings.nvme_bytes) / (1 << 20), number(outcome.samples), ready,
      settings.ready_seconds_max);
  if (settings.fill_bytes > 0) {
    std::printf(", ready %.2f s with %.2f GiB stored", static_cast<double>(big.ready_us()) / 1e6,
                static_cast<double>(big.stored_bytes()) / (1ull << 30));
  }
  std::printf("\n");
  return held ? 0 : 1;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("SIGKILL at random moments, and what comes back");
  app.option_defaults()->take_last();  // the bars' own come first
  app.add_option("--crumbd", settings.crumbd, "The daemon")->required();
  app.add_option("--cycles", settings.cycles, "Kills");
  app.add_option("--seed", settings.seed, "Of everything random but the scheduler");
  app.add_option("--fill-bytes", settings.fill_bytes, "Stored before the big restart; 0: none");
  app.add_option("--clients", settings.clients, "Each with keys of its own")
      ->check(CLI::Range(1, 16));
  app.add_option("--load-ms", settings.load_ms, "Of each life at most")
      ->check(CLI::Range(1, 10'000));
  app.add_option("--flush-one-in", settings.flush_one_in, "Lives with a flush of everything");
  app.add_option("--look-at-one-in", settings.look_at_one_in,
                 "After a start: of the keys that the last life left alone")
      ->check(CLI::Range(1, 1000));
  app.add_option("--deadline-ms", settings.deadline_ms, "Of each call; a later answer is a hang");
  app.add_option("--nvme-bytes", settings.nvme_bytes, "The cap");
  app.add_option("--segment-bytes", settings.segment_bytes, "Of the log");
  app.add_flag("--reclaims", settings.reclaims, "The log is smaller than what is put");
  app.add_option("--volume", settings.volume, "Where the data directory is made, if not in --dir");
  app.add_flag("--fill-volume", settings.fill_volume, "Others fill that volume now and then");
  app.add_option("--dir", settings.parent, "Where everything else is made");
  app.add_option("--transport", settings.transport)->check(CLI::IsMember({"ucx", "grpc", "shm"}));
  app.add_option("--ready-seconds-max", settings.ready_seconds_max);
  CLI11_PARSE(app, argc, argv);
  Figures figures;
  BigLog big(settings, &figures);
  Outcome outcome{.whole = true};
  if (settings.cycles > 0) outcome = RunCycles(settings, &figures);
  outcome.whole = outcome.whole && (settings.fill_bytes == 0 || big.Run());
  return Report(settings, figures, big, outcome);
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::Main(argc, argv); }
