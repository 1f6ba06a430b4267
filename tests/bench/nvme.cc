// Pages through the segment log on one file, or on several that are striped: throughput, and what
// the thread that owns the log spends on a page. That is CLOCK_THREAD_CPUTIME_ID around the loop of
// turns: the log, the device, and the kernel's work for submissions and completions that runs on
// this thread; not the payload's checksum, which a pool thread computes, as in the daemon.
//   bench_nvme fill FILE...   makes a log that holds --gib of pages
//   bench_nvme read FILE...   reads every page once, in random order; verified
//   bench_nvme write FILE...  appends --gib of pages, over older ones; sealed by pool threads
// read and write print: MiB/s, then microseconds of this thread for a page.
#include <poll.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <numeric>

#include "cachesvc/base/worker_pool.h"
#include "gpu/pool/arena.h"
#include "storage/device/registered_slices.h"
#include "tests/bench/log_bench.h"

namespace crumb::bench {
namespace {

constexpr size_t kEvents = 64;
constexpr size_t kPoolThreads = 2;
constexpr uint32_t kSlotsPerDepth =
    4;  // so that pages at the pool take no place in the disk's queue

struct Settings {
  std::vector<std::string> files;
  uint64_t gib = 2;
  uint32_t page_kib = 1024;
  uint32_t depth = 32;
  uint32_t unit_kib = kStripeUnitBytes >> 10;
  bool unmerged = false, in_order = false, unverified = false, durable = false, small_pages = false;

  uint32_t page_bytes() const { return page_kib << 10; }
  uint32_t slots() const { return depth * kSlotsPerDepth; }
  uint64_t pages() const { return (gib << 30) / page_bytes(); }
  DiskOptions disk() const {
    // Room for one segment that is kept ready, for remainders, footers and marks.
    return {.paths = files,
            .bytes = (gib << 30) + (gib << 26) + (256ull << 20),
            .merge = !unmerged,
            .unit_bytes = unit_kib << 10};
  }
};

// Where pages lie: what the daemon's pool is made of and, unless --small-pages, in huge pages, as
// it is once it is registered.
Arena MakeArena(const Settings& settings) {
  absl::StatusOr<Arena> arena =
      Arena::Map(uint64_t{settings.slots()} * settings.page_bytes(),
                 settings.small_pages ? HugePages::kNo : HugePages::kTransparent);
  if (!arena.ok()) Fail(arena.status().ToString());
  std::memset(arena->bytes().data(), 1, arena->bytes().size());
  return *std::move(arena);
}

double ThreadSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Prints the figures of what ran since it was made.
class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock)
      : clock_(clock), begin_us_(clock.now_us()), begin_cpu_(ThreadSeconds()) {}
  void Print(uint64_t pages, uint32_t page_bytes) const {
    const double cpu = ThreadSeconds() - begin_cpu_;
    const double seconds = static_cast<double>(clock_.now_us() - begin_us_) * 1e-6;
    const auto count = static_cast<double>(pages);
    std::printf("%.1f %.2f\n", count * page_bytes / 1048576 / seconds, cpu * 1e6 / count);
  }

 private:
  const Clock& clock_;
  uint64_t begin_us_;
  double begin_cpu_;
};

// What a pool thread checks.
struct Check {
  Bytes record;
  BlockKey key;
  DiskLocation location;
  BlockResult result = BlockResult::kOk;
};

void Verify(void* arg, uint32_t) noexcept {
  auto* check = static_cast<Check*>(arg);
  check->result = SegmentLog::VerifyRecord(check->record, check->key, check->location);
}

class Reader {
 public:
  Reader(const Settings& settings, OpenLog* open, MutableBytes arena,
         std::vector<RecoveredRecord> records)
      : settings_(settings),
        log_(*open->log),
        arena_(arena),
        records_(std::move(records)),
        checks_(settings.slots()),
        pool_(kPoolThreads, settings.slots()) {
    free_.resize(settings.slots());
    std::iota(free_.begin(), free_.end(), 0);
  }

  void Run() {
    while (done_ < records_.size()) {
      const size_t taken = TakeEvents() + TakeChecks();
      Issue();
      log_.Submit();
      if (taken == 0) Sleep();
    }
  }

 private:
  size_t TakeEvents() {
    const size_t count = log_.Poll(absl::MakeSpan(events_));
    for (size_t i = 0; i < count; ++i) {
      if (events_[i].result != BlockResult::kOk) Fail("a read failed");
      const size_t slot = events_[i].token;
      --in_flight_;
      if (settings_.unverified) {
        Done(slot);
        continue;
      }
      const MutableBytes bytes = Slot(slot).subspan(0, events_[i].location.record_bytes);
      checks_[slot] = {.record = bytes, .key = events_[i].key, .location = events_[i].location};
      if (!pool_.Submit({&Verify, &checks_[slot], slot})) Fail("the pool is full");
    }
    return count;
  }
  size_t TakeChecks() {
    std::array<uint64_t, kEvents> tokens;
    const size_t count = pool_.Poll(absl::MakeSpan(tokens));
    for (size_t i = 0; i < count; ++i) {
      if (checks_[tokens[i]].result != BlockResult::kOk) Fail("a page does not verify");
      Done(tokens[i]);
    }
    return count;
  }
  void Issue() {
    while (next_ < records_.size() && !free_.empty() && in_flight_ < settings_.depth) {
      const RecoveredRecord& record = records_[next_];
      const BlockResult result =
          log_.ReadUnverified(record.header.key, record.location, Slot(free_.back()), free_.back());
      if (result == BlockResult::kBusy) return;
      if (result != BlockResult::kOk) Fail("a read was refused");
      free_.pop_back();
      ++in_flight_;
      ++next_;
    }
  }
  void Sleep() {
    pollfd entries[2] = {{log_.wake_fd(), POLLIN, 0}, {pool_.wake_fd(), POLLIN, 0}};
    if (pool_.in_flight() == 0 || pool_.Arm()) ::poll(entries, 2, 1000);
  }
  void Done(size_t slot) {
    free_.push_back(slot);
    ++done_;
  }
  MutableBytes Slot(size_t slot) const {
    return arena_.subspan(slot * settings_.page_bytes(), settings_.page_bytes());
  }

  const Settings& settings_;
  SegmentLog& log_;
  MutableBytes arena_;
  std::vector<RecoveredRecord> records_;
  std::vector<size_t> free_;
  std::vector<Check> checks_;
  std::array<LogEvent, kEvents> events_;
  size_t next_ = 0, in_flight_ = 0, done_ = 0;
  WorkerPool pool_;  // last: its threads end before what they use
};

OpenLog OpenDisk(const Settings& settings, MutableBytes arena, const Clock& clock,
                 CollectSink* sink) {
  OpenLog open = OpenDeviceOrFail(settings.disk());
  if (!arena.empty()) {
    const absl::Status registered = open.device->RegisterBuffers(CutForRegistering(arena));
    if (!registered.ok()) std::fprintf(stderr, "%s\n", registered.ToString().c_str());
  }
  OpenLogOrFail(&open, clock, sink);
  std::fprintf(stderr, "%s\n", open.description.c_str());
  return open;
}

int FillFiles(const Settings& settings) {
  SteadyClock clock;
  OpenLog open = OpenDisk(settings, {}, clock, nullptr);
  Fill(open.log.get(), {settings.page_bytes()}, settings.gib << 30);
  if (!open.log->Close().ok()) Fail("the log could not be closed");
  return open.direct ? 0 : 77;
}

int Read(const Settings& settings) {
  SteadyClock clock;
  CollectSink sink;
  const Arena arena = MakeArena(settings);
  OpenLog open = OpenDisk(settings, arena.bytes(), clock, &sink);
  std::vector<RecoveredRecord> records = std::move(sink.records);
  if (records.empty()) Fail("the log is empty: fill it first");
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return std::pair(a.location.segment, a.location.offset_blocks) <
           std::pair(b.location.segment, b.location.offset_blocks);
  });
  Rng rng(clock.now_us());
  for (size_t i = records.size(); i > 1 && !settings.in_order; --i) {
    std::swap(records[i - 1], records[rng.Below(i)]);
  }
  const size_t count = records.size();
  Reader reader(settings, &open, arena.bytes(), std::move(records));
  const Stopwatch watch(clock);
  reader.Run();
  watch.Print(count, settings.page_bytes());
  return 0;
}

// A page gets its key and its checksum.
struct Sealing {
  MutableBytes slot;
  uint64_t id = 0;
};

void Seal(void* arg, uint32_t) noexcept {
  auto* sealing = static_cast<Sealing*>(arg);
  PageHeader header;
  header.key = KeyOf(sealing->id);
  header.token_count = 64;
  header.payload_bytes = static_cast<uint32_t>(sealing->slot.size() - kPageHeaderBytes);
  SealHeader(header, sealing->slot.subspan(kPageHeaderBytes));
  StoreHeader(header, sealing->slot);
}

class Writer {
 public:
  // More slots than are in flight: the rest is being sealed.
  Writer(const Settings& settings, OpenLog* open, MutableBytes arena, uint64_t first_id)
      : settings_(settings),
        log_(*open->log),
        sealings_(arena.size() / settings.page_bytes()),
        next_id_(first_id),
        pool_(kPoolThreads, sealings_.size()) {
    for (size_t i = 0; i < sealings_.size(); ++i) {
      sealings_[i].slot = arena.subspan(i * settings.page_bytes(), settings.page_bytes());
      MakePage(i, sealings_[i].slot);
      StartSealing(i);
    }
  }

  void Run() {
    while (done_ < settings_.pages()) {
      const size_t taken = TakeEvents();
      std::array<uint64_t, kEvents> tokens;
      const size_t sealed = pool_.Poll(absl::MakeSpan(tokens));
      ready_.insert(ready_.end(), tokens.begin(), tokens.begin() + sealed);
      Issue();
      log_.Submit();
      if (taken + sealed == 0) Sleep();
    }
  }

 private:
  void StartSealing(size_t slot) {
    if (started_ == settings_.pages()) return;
    ++started_;
    sealings_[slot].id = next_id_++;
    if (!pool_.Submit({&Seal, &sealings_[slot], slot})) Fail("the pool is full");
  }
  size_t TakeEvents() {
    const size_t count = log_.Poll(absl::MakeSpan(events_));
    for (size_t i = 0; i < count; ++i) {
      if (events_[i].kind != LogEventKind::kAppended) continue;  // a page of a segment used again
      if (events_[i].result != BlockResult::kOk) Fail("an append failed");
      StartSealing(events_[i].token);
      ++done_;
    }
    return count;
  }
  void Issue() {
    while (!ready_.empty() && appended_ - done_ < settings_.depth) {
      const size_t slot = ready_.back();
      const BlockResult result = log_.Append(sealings_[slot].slot, settings_.durable, slot);
      if (result == BlockResult::kBusy) return;
      if (result != BlockResult::kOk) Fail("an append was refused");
      ready_.pop_back();
      ++appended_;
    }
  }
  void Sleep() {
    pollfd entries[2] = {{log_.wake_fd(), POLLIN, 0}, {pool_.wake_fd(), POLLIN, 0}};
    if (pool_.in_flight() == 0 || pool_.Arm()) ::poll(entries, 2, 1000);
  }

  const Settings& settings_;
  SegmentLog& log_;
  std::vector<Sealing> sealings_;
  std::vector<size_t> ready_;
  std::array<LogEvent, kEvents> events_;
  uint64_t next_id_, started_ = 0, appended_ = 0, done_ = 0;
  WorkerPool pool_;  // last: its threads end before what they use
};

int Write(const Settings& settings) {
  SteadyClock clock;
  const Arena arena = MakeArena(settings);
  OpenLog open = OpenDisk(settings, arena.bytes(), clock, nullptr);
  {
    Writer writer(settings, &open, arena.bytes(), clock.now_us() << 20);  // keys of this run alone
    const Stopwatch watch(clock);
    writer.Run();
    watch.Print(settings.pages(), settings.page_bytes());
  }
  if (!open.log->Close().ok()) Fail("the log could not be closed");
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Throughput and CPU time of pages through the segment log.");
  std::string mode;
  Settings settings;
  app.add_option("mode", mode)->required()->check(CLI::IsMember({"fill", "read", "write"}));
  app.add_option("files", settings.files)->required()->expected(1, 16);
  app.add_option("--gib", settings.gib)->check(CLI::Range(1, 1024));
  app.add_option("--page-kib", settings.page_kib)->check(CLI::Range(4, 65536));
  app.add_option("--depth", settings.depth)->check(CLI::Range(1, 64));
  app.add_option("--unit-kib", settings.unit_kib, "of a new striped set");
  app.add_flag("--unmerged", settings.unmerged, "small neighbours go one by one");
  app.add_flag("--in-order", settings.in_order, "read: as the pages lie on the disk");
  app.add_flag("--unverified", settings.unverified, "read: no checksums at all");
  app.add_flag("--small-pages", settings.small_pages, "memory without huge pages");
  app.add_flag("--durable", settings.durable, "write: each append asks for it");
  CLI11_PARSE(app, argc, argv);
  if (mode == "fill") return FillFiles(settings);
  return mode == "read" ? Read(settings) : Write(settings);
}

}  // namespace
}  // namespace crumb::bench

int main(int argc, char** argv) { return crumb::bench::Main(argc, argv); }
