// The plan of one seed and its execution.
#include "tests/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/page_header.h"
#include "storage/segment/log_format.h"
#include "storage/segment/log_head.h"
#include "tests/sim/sim_daemon.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kClients = 2;
constexpr uint64_t kRoomyDiskBytes = 192ull << 20;
constexpr uint64_t kTightDiskBytes = 5ull << 20;
constexpr uint64_t kFinishUs = 20'000'000;  // after faults stop; the default deadline is 5 s
constexpr int kIdleTurnsMax = 1000;         // of a loop that neither works nor sleeps
constexpr int kBusyTurnsMax = 200'000;      // of a loop that works without an event coming in
constexpr int kStartsMax = 4;

// What this seed does. Drawn once; every run of the seed has the same.
struct Plan {
  uint32_t keys = 0;
  uint32_t epochs = 0;              // lives of the daemon
  uint64_t requests_per_epoch = 0;  // answered, roughly
  uint64_t disk_bytes = 0;
  DaemonPlan daemon;
  Workload workload;
  uint32_t rot_percent = 0;      // chance per fault tick
  uint32_t die_percent = 0;      // same
  uint32_t cut_off_percent = 0;  // same
  uint32_t flush_percent = 0;    // same
  bool crash_in_recovery = false;
  bool stop_cleanly = false;
};

Plan MakePlan(Rng& rng) {
  Plan plan;
  plan.keys = static_cast<uint32_t>(60 + rng.Below(140));
  plan.epochs = static_cast<uint32_t>(2 + rng.Below(3));
  plan.requests_per_epoch = 100 + rng.Below(200);
  plan.disk_bytes = rng.Chance(2, 3) ? kRoomyDiskBytes : kTightDiskBytes;
  plan.daemon.pool_bytes = (1 + rng.Below(2)) << 20;
  for (uint8_t& byte : plan.daemon.secret.bytes) byte = static_cast<uint8_t>(rng.Next());
  plan.daemon.format_seed = rng.Next() | 1;
  if (rng.Chance(1, 4)) {
    plan.daemon.device.read_errors_per_10k = static_cast<uint32_t>(rng.Below(100));
    plan.daemon.device.write_errors_per_10k = static_cast<uint32_t>(rng.Below(100));
  }
  plan.workload.durable_percent = static_cast<uint32_t>(rng.Below(80));
  plan.workload.erase = static_cast<uint32_t>(rng.Below(6));
  plan.workload.rubbish = rng.Chance(1, 4) ? 1 : 0;
  plan.rot_percent = rng.Chance(1, 3) ? 60 : 0;
  plan.die_percent = rng.Chance(1, 2) ? 30 : 0;
  plan.cut_off_percent = rng.Chance(1, 3) ? 20 : 0;
  plan.flush_percent = rng.Chance(1, 4) ? 10 : 0;
  plan.crash_in_recovery = rng.Chance(1, 4);
  plan.stop_cleanly = rng.Chance(1, 4);
  return plan;
}

class World {
 public:
  explicit World(const SimOptions& options)
      : options_(options),
        context_(options.seed, options.echo),
        plan_(MakePlan(context_.rng)),
        disk_(plan_.disk_bytes),
        model_(&context_, options.layouts, plan_.daemon.secret, plan_.keys) {
    for (uint32_t i = 0; i < kClients; ++i) {
      clients_.push_back(std::make_unique<SimClient>(&context_, &model_, options.layouts,
                                                     SimClientOptions{.number = i}));
    }
  }
  ~World() {
    context_.events.CancelAll(this);
    clients_.clear();
  }

  SimResult Run();

 private:
  bool StartDaemon();
  void EndDaemon();
  void RunEpoch(bool last);
  void RunWorkload();
  void Finish();
  void AuditAll();
  void StopCleanly();
  void CheckEnd();
  void FlushAndCheck();

  // One step of simulated time. False: nothing will ever happen again.
  bool Step();
  template <typename Done>
  void StepUntil(Done done, uint64_t within_us, const char* what);

  void ClientTick(size_t index);
  void FaultTick();
  void Rot();
  bool HeadIsKnown() const;
  void Flush(bool everything);
  void NoteDamage(const IoRequest& request);
  void ConnectAll();
  void CloseAbandoned();
  void Absorb(const EngineStats& stats);
  uint64_t Outstanding() const;

  const SimOptions options_;
  SimContext context_;
  const Plan plan_;
  SimDisk disk_;
  Model model_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  std::unique_ptr<SimDaemon> daemon_;
  SimResult result_;
  bool working_ = false;  // clients ask at random
  bool faults_ = false;
  uint64_t flushes_in_flight_ = 0;
  uint64_t reclaimed_before_ = 0;  // by daemons that are gone
  int idle_turns_ = 0, busy_turns_ = 0;
};

uint64_t World::Outstanding() const {
  uint64_t sum = flushes_in_flight_;
  for (const auto& client : clients_) sum += client->outstanding();
  return sum;
}

bool World::StartDaemon() {
  for (int attempt = 0; attempt < kStartsMax && !context_.failed(); ++attempt) {
    DaemonPlan plan = plan_.daemon;
    plan.device = SimDeviceOptions{.depth = plan.device.depth};  // start-up without device errors
    if (plan_.crash_in_recovery && attempt + 1 < kStartsMax) {
      plan.cut_power_after = context_.rng.Below(60);
    }
    context_.trace.Add("start", static_cast<uint64_t>(attempt));
    daemon_ = SimDaemon::Start(&context_, &disk_, plan, options_);
    if (daemon_ == nullptr) continue;
    daemon_->device().CutPowerAfter(UINT64_MAX);
    daemon_->device().set_on_error([this](const IoRequest& request) { NoteDamage(request); });
    result_.recovered += daemon_->engine().stats().nvme.recovered;
    return true;
  }
  return false;
}

void World::EndDaemon() {
  Absorb(daemon_->engine().stats());
  for (const auto& client : clients_) client->OnClosed();
  context_.events.CancelAll(this);
  daemon_.reset();
  flushes_in_flight_ = 0;
  for (const auto& client : clients_) client->TakeAbandonedSession();
  model_.Crashed();
}

void World::Absorb(const EngineStats& stats) {
  result_.nvme_hits += stats.hits[static_cast<size_t>(Tier::kNvme)];
  result_.evictions += stats.evicted_to_nvme + stats.evicted_dropped;
  result_.reclaimed += stats.nvme.segments_reclaimed;
  result_.corrupt_counted += stats.nvme.checksum_failures + stats.nvme.dropped_checksum +
                             stats.nvme.dropped_torn + stats.nvme.dropped_format +
                             stats.nvme.dropped_stamp + stats.nvme.read_errors +
                             stats.nvme.append_errors + stats.checksum_failures_nvme;
  reclaimed_before_ += stats.nvme.segments_reclaimed + stats.nvme.segments_quarantined;
}

bool World::Step() {
  context_.events.RunDue();
  if (context_.failed()) return false;
  if (daemon_ != nullptr) {
    const int work = daemon_->Turn();
    const SegmentLogStats& nvme = daemon_->engine().stats().nvme;
    model_.set_log_keeps_all(
        reclaimed_before_ + nvme.segments_reclaimed + nvme.segments_quarantined == 0);
    if (work > 0) {
      if (++busy_turns_ > kBusyTurnsMax) context_.Fail("the engine never comes to rest");
      context_.clock.AdvanceTo(context_.clock.now_us() + context_.rng.Below(3));
      idle_turns_ = 0;
      return true;
    }
    if (!daemon_->Arm()) {
      if (++idle_turns_ > kIdleTurnsMax) context_.Fail("the engine refuses to sleep without work");
      return true;
    }
  }
  busy_turns_ = 0;
  uint64_t next = context_.events.next_us();
  if (daemon_ != nullptr) next = std::min(next, daemon_->engine().next_timer_us());
  if (next == UINT64_MAX) return false;
  if (next <= context_.clock.now_us()) {
    if (++idle_turns_ > kIdleTurnsMax) context_.Fail("a timer is due but nothing serves it");
    return true;
  }
  idle_turns_ = 0;
  context_.clock.AdvanceTo(next);
  return true;
}

template <typename Done>
void World::StepUntil(Done done, uint64_t within_us, const char* what) {
  const uint64_t end = context_.clock.now_us() + within_us;
  while (!context_.failed() && !done()) {
    if (!Step() || context_.clock.now_us() > end) {
      if (!done()) context_.Fail(absl::StrCat("never finished: ", what));
      return;
    }
  }
}

void World::ConnectAll() {
  for (const auto& client : clients_) {
    if (!client->connected()) client->Connect(&daemon_->engine(), &daemon_->transport());
  }
}

void World::CloseAbandoned() {
  for (const auto& client : clients_) {
    const SessionId session = client->TakeAbandonedSession();
    if (session.value != 0) daemon_->engine().CloseSession(session);
  }
}

void World::ClientTick(size_t index) {
  if (!working_) return;
  SimClient& client = *clients_[index];
  if (!client.connected() && daemon_ != nullptr) {
    CloseAbandoned();
    client.Connect(&daemon_->engine(), &daemon_->transport());
  }
  client.DoSomething(plan_.workload);
  const uint64_t pause = Latency(context_.rng, 1, 200);
  context_.events.After(this, pause, [this, index] { ClientTick(index); });
}

void World::FaultTick() {
  if (!faults_) return;
  Rng& rng = context_.rng;
  if (rng.Chance(plan_.rot_percent, 100)) Rot();
  SimClient& client = *clients_[rng.Below(clients_.size())];
  if (rng.Chance(plan_.die_percent, 100)) client.Die();
  if (rng.Chance(plan_.cut_off_percent, 100) && client.connected()) {
    // Sometimes longer than every deadline.
    daemon_->transport().CutOff(client.peer(),
                                1000 + rng.Below(rng.Chance(1, 4) ? 7'000'000 : 50'000));
  }
  if (rng.Chance(plan_.flush_percent, 100)) Flush(rng.Chance(1, 2));
  context_.events.After(this, 500 + rng.Below(4000), [this] { FaultTick(); });
}

void World::Flush(bool everything) {
  const SimLayout& layout = (*options_.layouts)[context_.rng.Below(options_.layouts->size())];
  FlushRequest request;
  if (!everything) {
    request.has_identity = true;
    request.identity = layout.binding.layout->hash();
  }
  std::vector<std::pair<KeyRef, size_t>> removals;
  for (uint32_t i = 0; i < model_.key_count(); ++i) {
    const KeyRef key{i};
    if (!everything && &model_.layout(key) != &layout) continue;
    removals.emplace_back(key, model_.StartRemoval(key));
  }
  context_.trace.Add("flush", everything ? 0 : layout.handle);
  ++flushes_in_flight_;
  daemon_->engine().Flush(request, [this, removals](const absl::Status& status) {
    context_.trace.Add("flushed", static_cast<uint64_t>(status.raw_code()));
    --flushes_in_flight_;
    for (const auto& [key, removal] : removals) model_.EndRemoval(key, removal, status.ok());
  });
}

// A log whose superblocks are both destroyed is refused, and left as it was: there is no next life
// to look at (docs/storage.md, "Start").
bool World::HeadIsKnown() const {
  std::vector<uint8_t> bytes(kLogHeadBytes);
  disk_.ReadStable(0, absl::MakeSpan(bytes));
  const absl::StatusOr<LogHead> head = ParseHead(bytes);
  return head.ok() && !head->blank;
}

// Flips a bit of a stored record, or now and then of anything else on the disk.
void World::Rot() {
  const std::vector<uint64_t> blocks = disk_.DurableBlocks();
  if (blocks.empty()) return;
  const uint64_t first = blocks[context_.rng.Below(blocks.size())];
  std::array<uint8_t, kSimBlockBytes> block;
  disk_.Read(first * kSimBlockBytes, absl::MakeSpan(block));
  const PageHeader header = LoadHeader(block);
  KeyRef key;
  if (CheckHeaderFields(header) == PageCheck::kOk && StampIsValid(header) &&
      model_.Find(header.key, &key)) {
    const uint64_t bit = context_.rng.Below((kPageHeaderBytes + header.payload_bytes) * 8);
    const uint64_t victim = first + bit / 8 / kSimBlockBytes;
    if (!disk_.FlipBit(victim, static_cast<uint32_t>(bit % (8ull * kSimBlockBytes)))) return;
    model_.Excuse(key);
    context_.trace.Add("rot of a page", victim, key.index);
  } else if (context_.rng.Chance(1, 4)) {
    const auto bit = static_cast<uint32_t>(context_.rng.Below(8ull * kSimBlockBytes));
    if (!disk_.FlipBit(first, bit)) return;
    if (!HeadIsKnown()) {
      CRUMB_CHECK(disk_.FlipBit(first, bit));
      return;
    }
    model_.ExcuseAll();
    context_.trace.Add("rot", first);
  } else {
    return;
  }
  ++result_.damaged;
}

// An error was injected into this request: the pages in it may be lost.
void World::NoteDamage(const IoRequest& request) {
  ++result_.damaged;
  context_.trace.Add("device error", static_cast<uint64_t>(request.op), request.offset);
  if (request.op == IoOp::kSync) return model_.ExcuseAll();
  std::vector<uint8_t> data(request.bytes);
  disk_.Read(request.offset, absl::MakeSpan(data));
  if (request.op != IoOp::kRead) std::copy_n(request.data, request.bytes, data.begin());
  bool found = false;
  for (size_t at = 0; at < data.size(); at += kSimBlockBytes) {
    const PageHeader header = LoadHeader(Bytes(data).subspan(at));
    KeyRef key;
    if (header.magic != kPageMagic || !model_.Find(header.key, &key)) continue;
    model_.Excuse(key);
    found = true;
  }
  if (!found) model_.ExcuseAll();
}

void World::RunWorkload() {
  working_ = true;
  faults_ = true;
  for (size_t i = 0; i < clients_.size(); ++i) {
    context_.events.After(this, context_.rng.Below(200), [this, i] { ClientTick(i); });
  }
  context_.events.After(this, context_.rng.Below(4000), [this] { FaultTick(); });
  uint64_t answered = 0;
  for (const auto& client : clients_) answered += client->answered();
  const uint64_t goal = answered + plan_.requests_per_epoch;
  const auto enough = [this, goal] {
    uint64_t sum = 0;
    for (const auto& client : clients_) sum += client->answered();
    return sum >= goal;
  };
  StepUntil(enough, 600'000'000, "the workload");
}

// Faults stop; everything that is in flight must end.
void World::Finish() {
  working_ = false;
  faults_ = false;
  daemon_->device().StopFaults();
  for (const auto& client : clients_) {
    if (client->connected()) daemon_->transport().CutOff(client->peer(), 0);
  }
  StepUntil([this] { return Outstanding() == 0; }, kFinishUs, "requests after faults stopped");
  StepUntil([this] { return daemon_->idle(); }, kFinishUs, "background work after faults stopped");
}

void World::AuditAll() {
  CloseAbandoned();
  ConnectAll();
  std::vector<uint32_t> order(model_.key_count());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[context_.rng.Below(i)]);
  size_t next = 0;
  const auto done = [&] {
    while (next < order.size() && clients_[next % kClients]->Audit({order[next]})) ++next;
    return next == order.size() && Outstanding() == 0;
  };
  StepUntil(done, 10 * kFinishUs, "the audit");
}

void World::CheckEnd() {
  // Client pins end by themselves: an hour is more than any of them lasts.
  context_.clock.AdvanceTo(context_.clock.now_us() + 3'600'000'000);
  for (int i = 0; i < 100 && !context_.failed(); ++i) daemon_->Turn();
  StepUntil([this] { return daemon_->idle(); }, kFinishUs, "background work at the end");
  if (!context_.failed()) daemon_->CheckAtRest();
}

// Everything is forgotten, also after a restart.
void World::FlushAndCheck() {
  Flush(true);
  StepUntil([this] { return flushes_in_flight_ == 0; }, kFinishUs, "the last flush");
  AuditAll();
  CheckEnd();
  if (context_.failed()) return;
  const EngineStats stats = daemon_->engine().stats();
  if (stats.index_entries != 0 || stats.pool_pages != 0) {
    context_.Fail(absl::StrCat("after a flush ", stats.index_entries, " entries are left, ",
                               stats.pool_pages, " in memory"));
  }
  EndDaemon();
  const uint64_t recovered = result_.recovered;
  if (!StartDaemon()) return;
  if (result_.recovered != recovered) context_.Fail("pages came back after a flush and a restart");
  AuditAll();
}

// Drain and close keep every page, unless the tier was off or out of room.
void World::StopCleanly() {
  Finish();
  const Moment since = model_.Now();
  AuditAll();
  if (context_.failed()) return;
  daemon_->StopCleanly();
  const SegmentLogStats nvme = daemon_->engine().stats().nvme;
  if (nvme.times_off == 0 && nvme.append_errors == 0) model_.PromiseHitsSince(since);
  // What the drain made room for is seen here.
  model_.set_log_keeps_all(
      reclaimed_before_ + nvme.segments_reclaimed + nvme.segments_quarantined == 0);
}

void World::RunEpoch(bool last) {
  if (!StartDaemon()) return;
  ++result_.crashes;
  AuditAll();  // what was promised before the crash is here
  daemon_->device().SetErrors(plan_.daemon.device);
  if (context_.failed()) return;
  RunWorkload();
  if (context_.failed()) return;
  if (last) {
    Finish();
    AuditAll();
    CheckEnd();
    if (!context_.failed()) FlushAndCheck();
    return;
  }
  if (plan_.stop_cleanly) {
    StopCleanly();
  } else {
    daemon_->Crash(context_.rng.Chance(2, 3));
  }
  EndDaemon();
}

SimResult World::Run() {
  for (uint32_t epoch = 0; epoch < plan_.epochs && !context_.failed(); ++epoch) {
    RunEpoch(epoch + 1 == plan_.epochs);
  }
  if (daemon_ != nullptr) EndDaemon();
  result_.failure = context_.failure;
  result_.trace_hash = context_.trace.hash();
  result_.trace_events = context_.trace.events();
  result_.simulated_us = context_.clock.now_us();
  for (const auto& client : clients_) result_.answers += client->answered();
  result_.hits = model_.hits();
  result_.misses = model_.misses();
  result_.promised_hits = model_.durable_hits();
  if (result_.failure.empty() && model_.lost_to_damage() > 0 && result_.corrupt_counted == 0) {
    result_.failure = "pages were lost to damage of the disk, but no counter says so";
  }
  return result_;
}

}  // namespace

SimResult RunSimulation(const SimOptions& options) { return World(options).Run(); }

}  // namespace crumb::sim
