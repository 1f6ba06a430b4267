// Building, turning and ending one life of the daemon.
#include "tests/sim/sim_daemon.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kSegmentBytes = 1u << 20;
constexpr uint32_t kIndexSmall = 1023;  // more than a simulation has keys
constexpr uint64_t kTurnsPerCheck = 8;
constexpr uint64_t kDrainUs = 30'000'000;

}  // namespace

std::unique_ptr<SimDaemon> SimDaemon::Start(SimContext* context, SimDisk* disk,
                                            const DaemonPlan& plan, const SimOptions& options,
                                            const ClusterSecret& secret) {
  std::unique_ptr<SimDaemon> daemon(new SimDaemon(context, plan));
  const absl::Status status = daemon->Build(disk, options, secret);
  // WHY dead counts: recovery can do without the last write of its own, but where the power went
  // out no process goes on.
  if (status.ok() && !daemon->dead()) return daemon;
  context->trace.Add("start failed");
  if (!daemon->dead()) context->Fail("start-up: " + status.ToString());
  return nullptr;
}

absl::Status SimDaemon::Build(SimDisk* disk, const SimOptions& options,
                              const ClusterSecret& secret) {
  CRUMB_ASSIGN(pool_, PagePool::Create({.bytes = plan_.pool_bytes}));
  queue_ = std::make_unique<SimDeviceQueue>(context_, plan_.queue);
  transport_ = std::make_unique<SimTransport>(context_, plan_.transport);
  DeviceQueue* queue = queue_.get();
  if (options.planted.queue) {
    wrapped_queue_ = options.planted.queue(queue);
    queue = wrapped_queue_.get();
  }
  Transport* transport = transport_.get();
  if (options.planted.transport) {
    wrapped_transport_ = options.planted.transport(transport);
    transport = wrapped_transport_.get();
  }
  CRUMB_ASSIGN(engine_, Engine::Create({.limits = plan_.limits,
                                        .secret = secret,
                                        .clock = &context_->clock,
                                        .pool = pool_.get(),
                                        .queue = queue,
                                        .policy = plan_.policy,
                                        .disk = plan_.upkeep,
                                        .nvme_admission = plan_.admission,
                                        .nvme_promotion = plan_.promotion,
                                        .fresh_percent = plan_.fresh_percent,
                                        .fresh_idle_us = plan_.fresh_idle_us,
                                        .max_lossy_depth = plan_.max_lossy_depth}));
  engine_->AddTransport(transport);
  if (plan_.has_disk) CRUMB_TRY(OpenLog(disk, options, secret));
  for (const SimLayout& layout : *options.layouts) {
    CRUMB_TRY(engine_->BindLayout(layout.handle, layout.binding));
  }
  return absl::OkStatus();
}

absl::Status SimDaemon::OpenLog(SimDisk* disk, const SimOptions& options,
                                const ClusterSecret& secret) {
  // Start-up is without device errors: a log that cannot be opened has no second life to look at.
  device_ = std::make_unique<SimBlockDevice>(context_, disk,
                                             SimDeviceOptions{.depth = plan_.device.depth});
  BlockDevice* device = device_.get();
  if (options.planted.device) {
    wrapped_device_ = options.planted.device(device);
    device = wrapped_device_.get();
  }
  device_->SetInstant(true);
  device_->CutPowerAfter(plan_.cut_power_after);
  SegmentLogOptions log = plan_.log;
  log.bytes_max = disk->size_bytes();
  log.segment_bytes = kSegmentBytes;
  log.secret_fingerprint = secret.fingerprint();
  log.format_seed = plan_.format_seed;
  CRUMB_ASSIGN(log_, SegmentLog::Open(log, device, &context_->clock, engine_->recovery_sink()));
  device_->SetInstant(false);
  device_->CutPowerAfter(UINT64_MAX);
  engine_->SetLog(log_.get());
  return absl::OkStatus();
}

SimDaemon::~SimDaemon() {
  // What is still in flight on the device ends with an error, and nothing is written any more.
  if (device_ != nullptr) device_->Kill();
  engine_.reset();
  log_.reset();
}

void SimDaemon::StopFaults() {
  if (device_ != nullptr) device_->StopFaults();
  queue_->StopFaults();
}

int SimDaemon::Turn(EngineStats* stats) {
  const int polled = engine_->Poll();
  const int ran = engine_->RunReady();
  if (plan_.limits.index_entries_max <= kIndexSmall || ++turns_ % kTurnsPerCheck == 0) {
    *stats = engine_->stats();
    CheckBounds(*stats);
  } else if (log_ != nullptr) {
    stats->nvme = log_->stats();
  }
  return polled + ran;
}

void SimDaemon::CheckBounds(const EngineStats& stats) const {
  const uint64_t in_flight =
      std::accumulate(stats.in_flight.begin(), stats.in_flight.end(), uint64_t{0});
  const auto check = [this](const char* what, uint64_t value, uint64_t bound) {
    if (value > bound)
      context_->Fail(absl::StrCat(what, " is ", value, ", over its bound ", bound));
  };
  check("requests in flight", in_flight, plan_.limits.requests_max);
  check("sessions", stats.sessions, plan_.limits.sessions_max);
  check("peers", stats.peers, plan_.limits.peers_max);
  check("pins", stats.pins, plan_.limits.pins_max);
  check("waiters", stats.waiters, plan_.limits.waiters_max);
  check("index entries", stats.index_entries, plan_.limits.index_entries_max);
  check("transfers", transport_->transfers_pending(), plan_.limits.transfers_max);
  check("device jobs", queue_->in_flight(), plan_.queue.jobs_max);
  check("prefetches", stats.prefetches, plan_.limits.prefetches_max);
  check("disk bytes", stats.nvme.used_bytes, stats.nvme.capacity_bytes);
  check("disk capacity", stats.nvme.capacity_bytes, plan_.disk_bytes);
  check("pool bytes", pool_->used_bytes(), pool_->capacity_bytes());
  check("staging bytes", pool_->staging_used_bytes(), pool_->staging_capacity_bytes());
}

bool SimDaemon::idle() const {
  return (log_ == nullptr || log_->idle()) && queue_->in_flight() == 0 &&
         transport_->transfers_pending() == 0 && !transport_->has_ready() &&
         engine_->stats().demotions_in_flight == 0;
}

void SimDaemon::CheckAtRest(uint64_t workers) const {
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
  zero("prefetches", stats.prefetches);
  if (device_ != nullptr) zero("device operations", device_->in_flight());
  if (stats.peers != stats.sessions || stats.peers > workers) {
    context_->Fail(absl::StrCat("at rest: ", stats.sessions, " sessions with ", stats.peers,
                                " peers, but only ", workers, " workers"));
  }
}

void SimDaemon::Crash(bool power) {
  if (device_ != nullptr) power ? device_->CutPower() : device_->Kill();
}

void SimDaemon::BeginDrain() {
  engine_->Drain(context_->clock.now_us() + kDrainUs, [this] { drained_ = true; });
}

void SimDaemon::Close() {
  if (log_ == nullptr) return;
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
