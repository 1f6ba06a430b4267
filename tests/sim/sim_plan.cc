// Drawing the plan of a seed.
#include "tests/sim/sim_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace crumb::sim {
namespace {

uint32_t Below(Rng& rng, uint64_t bound) { return static_cast<uint32_t>(rng.Below(bound)); }
uint32_t Between(Rng& rng, uint32_t low, uint32_t high) {
  return low + Below(rng, uint64_t{high} - low + 1);
}
bool Coin(Rng& rng) { return rng.Chance(1, 2); }

// Tiny limits find what large ones hide, and the other way round.
uint32_t Limit(Rng& rng, uint32_t tiny, uint32_t usual) {
  switch (rng.Below(4)) {
    case 0:
      return Between(rng, tiny, tiny + 2);
    case 1:
      return Between(rng, tiny, usual);
    default:
      return usual;
  }
}

EngineLimits DrawLimits(Rng& rng, uint32_t workers) {
  EngineLimits limits;
  limits.requests_max = Limit(rng, 3, 24);
  limits.requests_per_peer_max = Limit(rng, 2, 12);
  limits.blocks_in_flight_max = Limit(rng, 8, 48);
  limits.peers_max = workers + Below(rng, 6);
  limits.sessions_max = workers + Below(rng, 6);
  limits.layouts_max = 3 + Below(rng, 2);
  limits.region_sets_per_session_max = 4;
  limits.waiters_max = Limit(rng, 1, 6);
  limits.pins_max = Limit(rng, 1, 16);
  limits.index_entries_max = rng.Chance(1, 8) ? Between(rng, 24, 80) : 1024;
  limits.evictions_max = Limit(rng, 1, 6);
  limits.prefetches_max = Limit(rng, 1, 8);
  limits.transfers_max = Limit(rng, 1, 16);
  limits.served_per_session_max = Limit(rng, 1, 24);
  limits.default_deadline_us = rng.Chance(1, 4) ? 200'000 : 5'000'000;
  limits.transfer_grace_us = rng.Chance(1, 4) ? 300'000 : 10'000'000;
  return limits;
}

SegmentLogOptions DrawLog(Rng& rng) {
  SegmentLogOptions log;
  log.reads_max = Limit(rng, 1, 8);
  log.appends_max = Limit(rng, 1, 8);
  log.erases_max = Limit(rng, 1, 16);
  log.errors_max = Coin(rng) ? 16 : Between(rng, 2, 16);
  log.corrupt_max = Between(rng, 1, 4);
  log.retry_off_us = Coin(rng) ? 2'000'000 : 20'000;
  return log;
}

SimDeviceOptions DrawDevice(Rng& rng) {
  SimDeviceOptions device;
  device.depth = Limit(rng, 2, 64);
  if (rng.Chance(1, 5)) device.read_errors_per_10k = Below(rng, 120);
  if (rng.Chance(1, 5)) device.write_errors_per_10k = Below(rng, 120);
  if (rng.Chance(1, 6)) device.no_space_per_10k = Below(rng, 400);
  if (rng.Chance(1, 6)) device.lost_writes_per_10k = Below(rng, 150);
  if (rng.Chance(1, 6)) device.torn_writes_per_10k = Below(rng, 150);
  if (rng.Chance(1, 6)) device.misdirected_per_10k = Below(rng, 150);
  if (rng.Chance(1, 4)) device.slow_factor = Between(rng, 2, 40);
  if (rng.Chance(1, 8)) device.slow_seconds_per_10k = Below(rng, 30);
  return device;
}

DaemonPlan DrawDaemon(Rng& rng, uint32_t workers) {
  DaemonPlan plan;
  plan.limits = DrawLimits(rng, workers);
  plan.pool_bytes = (1 + rng.Below(2)) << 20;
  plan.policy = rng.Chance(1, 3) ? PolicyKind::kLru : PolicyKind::kS3Fifo;
  plan.admission = rng.Chance(1, 3) ? NvmeAdmission::kSeen : NvmeAdmission::kAll;
  plan.promotion = rng.Chance(1, 3) ? NvmePromotion::kSecond : NvmePromotion::kFirst;
  plan.fresh_percent = static_cast<uint8_t>(Coin(rng) ? 25 : rng.Below(60));
  plan.fresh_idle_us = Coin(rng) ? 30'000 : rng.Below(2) * 300;
  if (rng.Chance(1, 4)) plan.max_lossy_depth = static_cast<uint8_t>(rng.Below(4));
  plan.has_disk = !rng.Chance(1, 12);
  plan.disk_bytes = Coin(rng) ? 64ull << 20 : (4 + rng.Below(3)) << 20;
  plan.log = DrawLog(rng);
  plan.device = DrawDevice(rng);
  plan.queue.workers = Between(rng, 1, 3);
  plan.queue.jobs_max = Limit(rng, 2, 32);
  if (rng.Chance(1, 5)) plan.queue.slow_jobs_per_1k = Below(rng, 30);
  plan.transport.transfers_max = Limit(rng, 2, 64);
  plan.transport.sends_per_peer_max = Limit(rng, 1, 5);
  plan.transport.slow_factor = rng.Chance(1, 4) ? Between(rng, 2, 30) : 1;
  plan.format_seed = rng.Next() | 1;
  return plan;
}

Workload DrawWorkload(Rng& rng) {
  Workload load;
  const auto maybe = [&rng](uint32_t weight) { return Coin(rng) ? 1 + Below(rng, weight) : 0; };
  load.put = 10 + Below(rng, 40);
  load.get = 10 + Below(rng, 40);
  load.lookup = maybe(20);
  load.erase = maybe(8);
  load.pin = maybe(6);
  load.unpin = load.pin > 0 ? maybe(4) : 0;
  load.cancel = maybe(4);
  load.page_put = maybe(10);
  load.prefetch = maybe(12);
  load.rubbish = rng.Chance(1, 5) ? 1 : 0;
  load.durable_percent = Coin(rng) ? Below(rng, 101) : 0;
  load.wait_percent = Coin(rng) ? Below(rng, 30) : 0;
  load.parent_percent = Coin(rng) ? 50 : Below(rng, 101);
  load.pause_us_max = rng.Chance(1, 4) ? 5'000 : 200;
  return load;
}

FaultPlan DrawFaults(Rng& rng) {
  FaultPlan faults;
  const auto maybe = [&rng](uint32_t chance) {
    return rng.Chance(2, 5) ? 1 + Below(rng, chance) : 0;
  };
  faults.rot = maybe(60);
  faults.die = maybe(30);
  faults.cut_off = maybe(20);
  faults.partition = maybe(8);
  faults.flush = rng.Chance(1, 3) ? 1 + Below(rng, 15) : 0;
  faults.stall = maybe(8);
  faults.pause = maybe(8);
  faults.restart = rng.Chance(3, 4) ? 1 + Below(rng, 8) : 0;
  faults.clean_percent = rng.Chance(1, 3) ? 30 + Below(rng, 71) : 0;
  faults.power_percent = Below(rng, 101);
  faults.crash_in_recovery = rng.Chance(1, 4);
  faults.down_us_max = rng.Chance(1, 4) ? 3'000'000 : 20'000;
  return faults;
}

// WHY from the plan's own seed: the draws of all that was there before stay what they were.
DiskUpkeep DrawUpkeep(const DaemonPlan& daemon) {
  Rng rng(daemon.format_seed);
  DiskUpkeep upkeep;
  upkeep.rescue = Coin(rng);
  if (rng.Chance(1, 3)) {
    upkeep.scrub_bytes_per_second = 1ull << Between(rng, 18, 26);
    upkeep.scrub_interval_us = 1'000'000ull * Between(rng, 1, 40);
  }
  // A bucket holds what an hour brings: a few pages to a few megabytes.
  if (rng.Chance(1, 6)) upkeep.write_bytes_per_day = 24ull << Between(rng, 12, 22);
  upkeep.save = !rng.Chance(1, 8);
  return upkeep;
}

// Enough writes that a small disk throws its oldest pages away, again and again. A key that is
// there is not written twice, so it takes many keys.
void Churn(Rng& rng, SwarmPlan* plan) {
  plan->daemons.resize(1);
  DaemonPlan& daemon = plan->daemons.front();
  daemon.has_disk = true;
  daemon.disk_bytes = 4ull << 20;
  daemon.admission = NvmeAdmission::kAll;
  plan->keys = Between(rng, 350, 650);
  plan->requests = 800 + rng.Below(800);
  plan->workload.put = 60;
  plan->workload.erase = Below(rng, 8);
  plan->workload.durable_percent = 40 + Below(rng, 61);
}

}  // namespace

SwarmPlan DrawPlan(Rng& rng) {
  SwarmPlan plan;
  plan.keys = Between(rng, 24, 140);
  plan.workers = 1 + Below(rng, 4);
  plan.requests = rng.Chance(1, 16) ? 3000 : 100 + rng.Below(800);
  plan.lives_max = 1 + Below(rng, 4);
  for (uint8_t& byte : plan.secret.bytes) byte = static_cast<uint8_t>(rng.Next());
  const uint32_t daemons = std::min(1 + Below(rng, 3), 1 + Below(rng, 3));
  for (uint32_t i = 0; i < daemons; ++i) plan.daemons.push_back(DrawDaemon(rng, plan.workers));
  plan.workload = DrawWorkload(rng);
  plan.faults = DrawFaults(rng);
  if (rng.Chance(1, 6)) Churn(rng, &plan);
  for (DaemonPlan& daemon : plan.daemons) daemon.upkeep = DrawUpkeep(daemon);
  return plan;
}

std::string Describe(const SwarmPlan& plan) {
  const Workload& load = plan.workload;
  const FaultPlan& faults = plan.faults;
  std::string text = absl::StrCat(plan.daemons.size(), " daemons, ", plan.workers, " workers, ",
                                  plan.keys, " keys");
  const auto on = [&text](const char* name, uint64_t value) {
    if (value > 0) absl::StrAppend(&text, " ", name, "=", value);
  };
  on("lookup", load.lookup), on("erase", load.erase), on("pin", load.pin);
  on("page_put", load.page_put), on("prefetch", load.prefetch), on("rubbish", load.rubbish);
  on("durable%", load.durable_percent), on("rot", faults.rot), on("die", faults.die);
  on("cut_off", faults.cut_off), on("partition", faults.partition), on("flush", faults.flush);
  on("stall", faults.stall), on("pause", faults.pause), on("restart", faults.restart);
  on("clean%", faults.clean_percent), on("lives", plan.lives_max);
  for (const DaemonPlan& daemon : plan.daemons) {
    const SimDeviceOptions& device = daemon.device;
    absl::StrAppend(&text, "; pool ", daemon.pool_bytes >> 20, " MiB, ");
    daemon.has_disk ? absl::StrAppend(&text, "disk ", daemon.disk_bytes >> 20, " MiB")
                    : absl::StrAppend(&text, "no disk");
    on("eio_read", device.read_errors_per_10k), on("eio_write", device.write_errors_per_10k);
    on("enospc", device.no_space_per_10k), on("lost", device.lost_writes_per_10k);
    on("torn", device.torn_writes_per_10k), on("misdirected", device.misdirected_per_10k);
    on("rescue", daemon.upkeep.rescue), on("scrub", daemon.upkeep.scrub_bytes_per_second);
    on("budget", daemon.upkeep.write_bytes_per_day), on("unsaved", daemon.upkeep.save ? 0 : 1);
    on("entries", daemon.limits.index_entries_max);
    on("depth<", daemon.max_lossy_depth);
  }
  return text;
}

}  // namespace crumb::sim
