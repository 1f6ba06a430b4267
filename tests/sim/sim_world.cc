// The execution of one seed's plan.
#include "tests/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "tests/sim/mutation.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_plan.h"

namespace crumb::sim {
namespace {

constexpr uint64_t kLongSleepUs = 100'000;
constexpr uint64_t kFinishUs = 30'000'000;  // after faults stop; the default deadline is 5 s
constexpr uint64_t kWorkloadUs = 900'000'000;
constexpr uint64_t kHourUs = 3'600'000'000;
constexpr int kIdleTurnsMax = 1000;     // of loops that neither work nor sleep
constexpr int kBusyTurnsMax = 400'000;  // of loops that work without an event coming in
constexpr uint64_t kSlackUs = 3'000'000;

// One worker: its ends at every daemon die together.
struct Worker {
  KeptPages kept;
  std::vector<std::unique_ptr<SimClient>> ends;  // by daemon
};

class World {
 public:
  explicit World(const SimOptions& options)
      : options_(options),
        context_(options.seed, options.echo),
        plan_(DrawPlan(context_.rng)),
        space_(&context_, options.layouts, plan_.secret, plan_.keys) {
    for (uint32_t i = 0; i < plan_.daemons.size(); ++i) {
      nodes_.push_back(std::make_unique<SimNode>(&context_, options_, plan_, i, &space_));
    }
    quiet_.resize(nodes_.size());
    wishes_.resize(nodes_.size());
    workers_.resize(plan_.workers);
    for (uint32_t i = 0; i < plan_.workers; ++i) MakeWorker(i);
  }
  ~World() {
    context_.events.CancelAll(this);
    workers_.clear();
  }

  SimResult Run();

 private:
  void MakeWorker(uint32_t number);
  // The life of one daemon, as the plan of faults has it; all at the top, between two steps.
  enum class Wish : uint8_t { kNone, kKill, kPowerCut, kStop, kStart };
  void Serve();
  void StartNode(SimNode& node);
  void EndNode(SimNode& node);
  void StopInOrder(SimNode& node);
  void Finish(SimNode& node);
  void Audit(SimNode& node);
  void CheckGauges(SimNode& node);
  void CheckEnd();
  void FlushAndCheck(SimNode& node);

  // One step of simulated time. False: nothing will ever happen again.
  bool Step();
  bool Settle();  // one round of all loops; true: something was done or cannot sleep
  template <typename Done>
  void StepUntil(Done done, uint64_t within_us, const char* what);

  void WorkerTick(size_t number);
  void FaultTick();
  void NetworkFaults(SimNode& node);
  void CutOff(SimNode& node, SimClient& end, uint64_t duration_us);
  uint64_t CutOffTime();
  void Kill(Worker& worker);
  void Connect(SimNode& node, SimClient& end);
  // Runs `ask(end, key)` for every key at the node, in random order, through all workers.
  template <typename Ask>
  void ForEachKey(SimNode& node, Ask ask, const char* what);
  std::vector<SimClient*> EndsAt(const SimNode& node) const;
  uint64_t Outstanding(const SimNode& node) const;
  uint64_t Answered() const;

  const SimOptions options_;
  SimContext context_;
  const SwarmPlan plan_;
  KeySpace space_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<Worker> workers_;
  std::vector<bool> quiet_;  // by node: nobody asks it at random, nothing goes wrong there
  std::vector<Wish> wishes_;
  bool working_ = false;  // workers ask at random, faults happen
  uint64_t hours_us_ = 0;
  int idle_turns_ = 0, busy_turns_ = 0;
};

void World::MakeWorker(uint32_t number) {
  Worker& worker = workers_[number];
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const EngineLimits& limits = plan_.daemons[i].limits;
    worker.ends.push_back(std::make_unique<SimClient>(
        &context_, &nodes_[i]->model(), options_.layouts,
        SimClientOptions{.number = number,
                         .daemon = i,
                         .kept = &worker.kept,
                         .default_deadline_us = limits.default_deadline_us,
                         .patience_us = limits.transfer_grace_us + kSlackUs}));
  }
}

std::vector<SimClient*> World::EndsAt(const SimNode& node) const {
  std::vector<SimClient*> ends;
  for (const Worker& worker : workers_) ends.push_back(worker.ends[node.number()].get());
  return ends;
}

uint64_t World::Outstanding(const SimNode& node) const {
  uint64_t sum = node.flushes_in_flight();
  for (const SimClient* end : EndsAt(node)) sum += end->outstanding();
  return sum;
}

uint64_t World::Answered() const {
  uint64_t sum = 0;
  for (const Worker& worker : workers_) {
    for (const auto& end : worker.ends) sum += end->answered();
  }
  return sum;
}

void World::Connect(SimNode& node, SimClient& end) {
  SimDaemon& daemon = *node.daemon();
  const SessionId session = end.TakeAbandonedSession();
  if (session.value != 0) daemon.engine().CloseSession(session);
  if (!end.connected()) end.Connect(&daemon.engine(), &daemon.transport());
}

bool World::Settle() {
  int work = 0;
  bool awake = false;
  for (const auto& node : nodes_) {
    if (!node->runs()) continue;
    work += node->Turn();
    if (node->daemon()->dead()) wishes_[node->number()] = Wish::kKill;
  }
  if (work > 0) {
    if (++busy_turns_ > kBusyTurnsMax) context_.Fail("an engine never comes to rest");
    context_.clock.AdvanceTo(context_.clock.now_us() + context_.rng.Below(3));
    idle_turns_ = 0;
    return true;
  }
  for (const auto& node : nodes_) {
    if (node->up() && !node->Arm()) awake = true;
  }
  if (awake && ++idle_turns_ > kIdleTurnsMax) {
    context_.Fail("an engine refuses to sleep without work");
  }
  return awake;
}

bool World::Step() {
  const bool came = context_.events.RunDue() > 0;
  if (context_.failed()) return false;
  if (Settle()) return true;
  busy_turns_ = 0;
  uint64_t next = context_.events.next_us();
  for (const auto& node : nodes_) {
    if (node->up()) next = std::min(next, node->next_us());
  }
  if (next == UINT64_MAX) return false;
  // Whoever waits for what came looks at it before a long sleep.
  if (came && next > context_.clock.now_us() + kLongSleepUs) return true;
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
    const bool late = context_.clock.now_us() > end;
    if (!late && Step()) continue;
    // Asking may be what makes something happen again.
    if (context_.failed() || done()) return;
    if (late || context_.events.next_us() == UINT64_MAX) {
      return context_.Fail(absl::StrCat("never finished: ", what));
    }
  }
}

void World::WorkerTick(size_t number) {
  if (!working_) return;
  // A worker turns to one daemon after the other, as its requests fall.
  const size_t which = context_.rng.Below(nodes_.size());
  SimNode& node = *nodes_[which];
  if (node.up() && !quiet_[which]) {
    SimClient& end = *workers_[number].ends[which];
    if (!end.connected()) Connect(node, end);
    end.DoSomething(plan_.workload);
  }
  const uint64_t pause = Latency(context_.rng, 1, plan_.workload.pause_us_max);
  context_.events.After(this, pause, [this, number] { WorkerTick(number); });
}

void World::Kill(Worker& worker) {
  for (const auto& end : worker.ends) end->Die();
  worker.kept.clear();
}

// Sometimes longer than every deadline.
uint64_t World::CutOffTime() {
  return 1000 + context_.rng.Below(context_.rng.Chance(1, 4) ? 7'000'000 : 50'000);
}

void World::CutOff(SimNode& node, SimClient& end, uint64_t duration_us) {
  if (!end.connected()) return;
  node.daemon()->transport().CutOff(end.peer(), duration_us);
  end.Disturb(context_.clock.now_us() + duration_us + kSlackUs);
}

void World::NetworkFaults(SimNode& node) {
  Rng& rng = context_.rng;
  const FaultPlan& faults = plan_.faults;
  Worker& worker = workers_[rng.Below(workers_.size())];
  if (rng.Chance(faults.die, 100)) Kill(worker);
  if (rng.Chance(faults.cut_off, 100)) CutOff(node, *worker.ends[node.number()], CutOffTime());
  if (!rng.Chance(faults.partition, 100)) return;
  const uint64_t duration_us = CutOffTime();
  if (rng.Chance(1, 2)) {
    for (SimClient* end : EndsAt(node)) CutOff(node, *end, duration_us);
    return;
  }
  for (const auto& other : nodes_) {
    if (other->up() && !quiet_[other->number()]) {
      CutOff(*other, *worker.ends[other->number()], duration_us);
    }
  }
}

void World::FaultTick() {
  if (!working_) return;
  Rng& rng = context_.rng;
  const FaultPlan& faults = plan_.faults;
  context_.events.After(this, 500 + rng.Below(4000), [this] { FaultTick(); });
  SimNode& node = *nodes_[rng.Below(nodes_.size())];
  const uint32_t number = node.number();
  if (!node.up() || quiet_[number] || wishes_[number] != Wish::kNone) return;
  SimBlockDevice* const device = node.daemon()->device();
  if (device != nullptr && rng.Chance(faults.rot, 100)) node.Rot();
  NetworkFaults(node);
  if (rng.Chance(faults.flush, 100)) node.Flush(rng.Chance(1, 2));
  if (device != nullptr && rng.Chance(faults.stall, 100)) {
    device->Stall(1000 + rng.Below(rng.Chance(1, 4) ? 8'000'000 : 100'000));
  }
  if (rng.Chance(faults.pause, 100)) {
    const uint64_t until =
        context_.clock.now_us() + 100 + rng.Below(rng.Chance(1, 4) ? 6'000'000 : 50'000);
    node.Pause(until);
    for (SimClient* end : EndsAt(node)) end->Disturb(until + kSlackUs);
  }
  if (node.lives() >= plan_.lives_max || !rng.Chance(faults.restart, 100)) return;
  if (rng.Chance(faults.clean_percent, 100)) {
    wishes_[number] = Wish::kStop;
  } else if (device != nullptr && rng.Chance(1, 3)) {
    device->CutPowerAfter(rng.Below(40));  // in the middle of something
  } else {
    wishes_[number] = rng.Chance(faults.power_percent, 100) ? Wish::kPowerCut : Wish::kKill;
  }
}

void World::StartNode(SimNode& node) {
  if (!node.Start()) return;
  quiet_[node.number()] = true;
  Audit(node);  // what was promised before the crash is here
  quiet_[node.number()] = false;
}

void World::EndNode(SimNode& node) {
  for (SimClient* end : EndsAt(node)) end->OnClosed();
  node.End();
  for (SimClient* end : EndsAt(node)) end->TakeAbandonedSession();
}

// Everything that is in flight at the node must end, its faults having stopped.
void World::Finish(SimNode& node) {
  node.daemon()->StopFaults();
  node.Pause(0);
  for (SimClient* end : EndsAt(node)) {
    Connect(node, *end);
    node.daemon()->transport().CutOff(end->peer(), 0);
  }
  StepUntil([&] { return Outstanding(node) == 0; }, kFinishUs, "requests after faults stopped");
  StepUntil([&] { return node.daemon()->idle(); }, kFinishUs,
            "background work after faults stopped");
}

template <typename Ask>
void World::ForEachKey(SimNode& node, Ask ask, const char* what) {
  std::vector<SimClient*> ends = EndsAt(node);
  ends.resize(std::min<size_t>(ends.size(), node.plan().limits.requests_max / 2));
  for (SimClient* end : ends) Connect(node, *end);
  std::vector<uint32_t> order(space_.count());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[context_.rng.Below(i)]);
  size_t next = 0;
  const auto done = [&] {
    if (node.daemon()->dead()) return true;
    for (SimClient* end : ends) {
      if (!end->connected()) Connect(node, *end);  // it died, or the daemon sent it away
    }
    while (next < order.size() && ask(*ends[next % ends.size()], KeyRef{order[next]})) ++next;
    return next == order.size() && Outstanding(node) == 0;
  };
  StepUntil(done, 10 * kFinishUs, what);
}

void World::Audit(SimNode& node) {
  ForEachKey(
      node, [](SimClient& end, KeyRef key) { return end.Audit(key); }, "the audit");
}

// Drain and close keep every page, unless the tier was off or out of room.
void World::StopInOrder(SimNode& node) {
  quiet_[node.number()] = true;
  Finish(node);
  if (!context_.failed()) node.BeginStop();
  if (!context_.failed()) Audit(node);
  if (context_.failed()) return;
  node.daemon()->BeginDrain();
  StepUntil([&] { return node.daemon()->drained(); }, 2 * kFinishUs, "the drain");
  if (context_.failed()) return;
  node.daemon()->Close();
  node.PromiseHits();
  EndNode(node);
  quiet_[node.number()] = false;
}

// Lives that must begin or end now.
void World::Serve() {
  for (const auto& node : nodes_) {
    const Wish wish = std::exchange(wishes_[node->number()], Wish::kNone);
    if (wish == Wish::kNone || context_.failed()) continue;
    if (wish == Wish::kStart) {
      if (!node->up()) StartNode(*node);
      continue;
    }
    if (!node->up()) continue;
    if (wish == Wish::kStop && !node->daemon()->dead()) {
      StopInOrder(*node);
    } else {
      node->daemon()->Crash(wish == Wish::kPowerCut);
      EndNode(*node);
    }
    const uint64_t down_us = context_.rng.Below(plan_.faults.down_us_max);
    context_.events.After(this, down_us, [this, number = node->number()] {
      if (wishes_[number] == Wish::kNone) wishes_[number] = Wish::kStart;
    });
  }
}

// What the gauges say at rest is what look-ups find.
void World::CheckGauges(SimNode& node) {
  SimClient* const asking = EndsAt(node).front();
  const uint64_t bad_before = node.daemon()->engine().stats().scrub_bad_pages;
  asking->TakeCensus();
  ForEachKey(
      node, [&](SimClient&, KeyRef key) { return asking->Census(key); }, "the census");
  if (context_.failed()) return;
  StepUntil([&] { return node.daemon()->idle(); }, kFinishUs, "background work after the census");
  const SimClient::Found found = asking->TakeCensus();
  const EngineStats stats = node.daemon()->engine().stats();
  if (stats.scrub_bad_pages != bad_before) return;  // pages went between two look-ups
  const bool all_visible = node.plan().max_lossy_depth == 255;
  const auto check = [&](const char* what, uint64_t gauge, uint64_t truth) {
    if (gauge == truth || (!all_visible && gauge > truth)) return;
    context_.Fail(absl::StrCat("at rest: ", what, " is ", gauge, ", look-ups find ", truth));
  };
  check("index entries", stats.index_entries, found.all);
  check("pages in memory", stats.pool_pages, found.in_memory);
  for (size_t i = 0; i < stats.pages.size(); ++i) {
    check("pages of a precision", stats.pages[i], found.precisions[i]);
  }
}

// Client pins end by themselves: an hour is more than any of them lasts.
void World::CheckEnd() {
  for (const auto& node : nodes_) {
    if (!node->up()) continue;
    for (SimClient* end : EndsAt(*node)) Connect(*node, *end);  // whom the daemon sent away
  }
  hours_us_ += kHourUs;
  context_.clock.AdvanceTo(context_.clock.now_us() + kHourUs);
  for (int i = 0; i < 100 && !context_.failed(); ++i) {
    for (const auto& node : nodes_) {
      if (node->up()) node->Turn();
    }
  }
  for (const auto& node : nodes_) {
    if (!node->up()) continue;
    StepUntil([&] { return node->daemon()->idle(); }, kFinishUs, "background work at the end");
    if (!context_.failed()) node->daemon()->CheckAtRest(workers_.size());
  }
}

// Everything is forgotten, also after a restart.
void World::FlushAndCheck(SimNode& node) {
  node.Flush(true);
  StepUntil([&] { return node.flushes_in_flight() == 0; }, kFinishUs, "the last flush");
  if (!context_.failed()) Audit(node);
  if (!context_.failed()) CheckGauges(node);
  if (context_.failed()) return;
  const EngineStats stats = node.daemon()->engine().stats();
  if (stats.index_entries != 0 || stats.pool_pages != 0) {
    context_.Fail(absl::StrCat("after a flush ", stats.index_entries, " entries are left, ",
                               stats.pool_pages, " in memory"));
  }
  EndNode(node);
  if (!node.Start()) return;
  if (node.daemon()->engine().stats().nvme.recovered != 0) {
    context_.Fail("pages came back after a flush and a restart");
  }
  Audit(node);
}

SimResult World::Run() {
  for (const auto& node : nodes_) node->Start();
  working_ = true;
  for (size_t i = 0; i < workers_.size(); ++i) {
    context_.events.After(this, context_.rng.Below(200), [this, i] { WorkerTick(i); });
  }
  context_.events.After(this, context_.rng.Below(4000), [this] { FaultTick(); });
  // WHY no failure when the time is up: a plan may keep its one worker cut off nearly always. That
  // everything ends is promised for when faults have stopped, and is asked for then (Finish).
  const uint64_t end_us = context_.clock.now_us() + kWorkloadUs;
  while (!context_.failed() && Answered() < plan_.requests && context_.clock.now_us() <= end_us) {
    Serve();
    if (!Step()) context_.Fail("never finished: the workload");
  }
  working_ = false;
  for (const auto& node : nodes_) {
    wishes_[node->number()] = Wish::kNone;
    if (node->up() && node->daemon()->dead()) EndNode(*node);
    if (node->up()) node->daemon()->StopFaults();
  }
  for (const auto& node : nodes_) {
    if (context_.failed()) break;
    if (!node->up()) StartNode(*node);
    if (!context_.failed()) Finish(*node);
    if (!context_.failed()) Audit(*node);
  }
  if (!context_.failed()) CheckEnd();
  for (const auto& node : nodes_) {
    if (!context_.failed()) CheckGauges(*node);
  }
  for (const auto& node : nodes_) {
    if (!context_.failed()) FlushAndCheck(*node);
  }
  if (!context_.failed()) CheckEnd();
  for (const auto& node : nodes_) {
    if (node->up()) EndNode(*node);
    if (!context_.failed()) node->CheckCounters();
  }
  SimResult result;
  result.failure = context_.failure;
  result.plan = Describe(plan_);
  result.trace_hash = context_.trace.hash();
  result.trace_events = context_.trace.events();
  result.simulated_us = context_.clock.now_us() - hours_us_;
  result.answers = Answered();
  for (const auto& node : nodes_) node->AddTo(&result);
  return result;
}

}  // namespace

SimResult RunSimulation(const SimOptions& options) {
  SetMutation(options.planted.mutation);
  return World(options).Run();
}

}  // namespace crumb::sim
