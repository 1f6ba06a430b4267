// Building, turning and ending one life of the daemon.
#include "tests/sim/sim_daemon.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kJobsMax = 32;
constexpr uint32_t kWorkers = 3;
constexpr uint32_t kSegmentBytes = 1u << 20;
constexpr uint64_t kFreshIdleUs = 30'000;
constexpr uint64_t kDrainUs = 30'000'000;

EngineLimits SmallLimits() {
  EngineLimits limits;
  limits.requests_max = 24;
  limits.requests_per_peer_max = 12;
  limits.blocks_in_flight_max = 48;
  limits.peers_max = 8;
  limits.sessions_max = 16;
  limits.layouts_max = 4;
  limits.region_sets_per_session_max = 4;
  limits.waiters_max = 6;
  limits.pins_max = 16;
  limits.index_entries_max = 4096;
  limits.evictions_max = 6;
  limits.transfers_max = 16;
  limits.served_per_session_max = 8;
  return limits;
}

}  // namespace

std::unique_ptr<SimDaemon> SimDaemon::Start(SimContext* context, SimDisk* disk,
                                            const DaemonPlan& plan, const SimOptions& options) {
  std::unique_ptr<SimDaemon> daemon(new SimDaemon(context, SmallLimits()));
  const absl::Status status = daemon->Build(disk, plan, options);
  // WHY dead counts: recovery can do without the last write of its own, but where the power went
  // out no process goes on.
  if (status.ok() && !daemon->device_->dead()) return daemon;
  context->trace.Add("start failed");
  if (daemon->device_ == nullptr || !daemon->device_->dead()) {
    context->Fail("start-up: " + status.ToString());
  }
  return nullptr;
}

absl::Status SimDaemon::Build(SimDisk* disk, const DaemonPlan& plan, const SimOptions& options) {
  CRUMB_ASSIGN(pool_, PagePool::Create({.bytes = plan.pool_bytes}));
  queue_ = std::make_unique<SimDeviceQueue>(context_, kWorkers, kJobsMax);
  transport_ = std::make_unique<SimTransport>(context_, SimTransportOptions{});
  device_ = std::make_unique<SimBlockDevice>(context_, disk, plan.device);
  Transport* transport = transport_.get();
  if (options.planted.transport) {
    wrapped_transport_ = options.planted.transport(transport);
    transport = wrapped_transport_.get();
  }
  BlockDevice* device = device_.get();
  if (options.planted.device) {
    wrapped_device_ = options.planted.device(device);
    device = wrapped_device_.get();
  }
  CRUMB_ASSIGN(engine_, Engine::Create({.limits = limits_,
                                        .secret = plan.secret,
                                        .clock = &context_->clock,
                                        .pool = pool_.get(),
                                        .queue = queue_.get(),
                                        .fresh_idle_us = kFreshIdleUs}));
  engine_->AddTransport(transport);
  device_->SetInstant(true);
  device_->CutPowerAfter(plan.cut_power_after);
  CRUMB_ASSIGN(log_, SegmentLog::Open({.bytes_max = disk->size_bytes(),
                                       .segment_bytes = kSegmentBytes,
                                       .secret_fingerprint = plan.secret.fingerprint(),
                                       .format_seed = plan.format_seed,
                                       .reads_max = 8,
                                       .appends_max = 8,
                                       .erases_max = 16},
                                      device, &context_->clock, engine_->recovery_sink()));
  device_->SetInstant(false);
  engine_->SetLog(log_.get());
  for (const SimLayout& layout : *options.layouts) {
    CRUMB_TRY(engine_->BindLayout(layout.handle, layout.binding));
  }
  return absl::OkStatus();
}

SimDaemon::~SimDaemon() {
  // What is still in flight on the device ends with an error, and nothing is written any more.
  if (device_ != nullptr) device_->Kill();
  engine_.reset();
  log_.reset();
}

int SimDaemon::Turn() {
  const int polled = engine_->Poll();
  const int ran = engine_->RunReady();
  CheckBounds();
  return polled + ran;
}

void SimDaemon::CheckBounds() const {
  const EngineStats stats = engine_->stats();
  const uint64_t in_flight =
      std::accumulate(stats.in_flight.begin(), stats.in_flight.end(), uint64_t{0});
  const auto check = [this](const char* what, uint64_t value, uint64_t bound) {
    if (value > bound)
      context_->Fail(absl::StrCat(what, " is ", value, ", over its bound ", bound));
  };
  check("requests in flight", in_flight, limits_.requests_max);
  check("sessions", stats.sessions, limits_.sessions_max);
  check("peers", stats.peers, limits_.peers_max);
  check("pins", stats.pins, limits_.pins_max);
  check("waiters", stats.waiters, limits_.waiters_max);
  check("index entries", stats.index_entries, limits_.index_entries_max);
  check("transfers", transport_->transfers_pending(), limits_.transfers_max);
  check("device jobs", queue_->in_flight(), kJobsMax);
  check("pool bytes", pool_->used_bytes(), pool_->capacity_bytes());
  check("staging bytes", pool_->staging_used_bytes(), pool_->staging_capacity_bytes());
}

bool SimDaemon::idle() const {
  return log_->idle() && queue_->in_flight() == 0 && transport_->transfers_pending() == 0 &&
         !transport_->has_ready() && engine_->stats().demotions_in_flight == 0;
}

void SimDaemon::CheckAtRest() const {
  const EngineStats stats = engine_->stats();
  const auto zero = [this](const char* what, uint64_t value) {
    if (value != 0) context_->Fail(absl::StrCat("at rest: ", what, " is ", value, ", not 0"));
  };
  zero("requests in flight",
       std::accumulate(stats.in_flight.begin(), stats.in_flight.end(), uint64_t{0}));
  zero("client pins", stats.pins);
  zero("pinned slots", pool_->pinned_slots());
  zero("staging bytes", pool_->staging_used_bytes());
  zero("waiters", stats.waiters);
  zero("transfers", transport_->transfers_pending());
  zero("device jobs", queue_->in_flight());
  zero("device operations", device_->in_flight());
  if (stats.peers != stats.sessions || stats.peers > 2) {
    context_->Fail(absl::StrCat("at rest: ", stats.sessions, " sessions with ", stats.peers,
                                " peers, but only two workers"));
  }
}

void SimDaemon::Crash(bool power) { power ? device_->CutPower() : device_->Kill(); }

void SimDaemon::StopCleanly() {
  bool drained = false;
  engine_->Drain(context_->clock.now_us() + kDrainUs, [&drained] { drained = true; });
  for (int turn = 0; turn < 1'000'000 && !drained && !context_->failed(); ++turn) {
    context_->events.RunDue();
    if (Turn() > 0) continue;
    const uint64_t next = std::min(context_->events.next_us(), engine_->next_timer_us());
    if (next == UINT64_MAX) break;
    context_->clock.AdvanceTo(next);
  }
  if (!drained) context_->Fail("drain never ended");
  device_->SetInstant(true);
  const absl::Status closed = log_->Close();
  // A segment whose sync or footer met a device error stays unsealed: Close says so, and the next
  // start scans it (docs/storage.md, "What each failure does").
  const bool unsealed = absl::IsUnavailable(closed) && log_->stats().append_errors > 0;
  if (!closed.ok() && !unsealed && !device_->dead()) {
    context_->Fail("close: " + closed.ToString());
  }
}

}  // namespace crumb::sim
