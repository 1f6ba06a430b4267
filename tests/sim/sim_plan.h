// What one seed does, drawn once: which daemons with which limits, which workers, which operations
// and which faults are there at all. A seed has few of them, at random (swarm testing): what is off
// in one seed leaves room for what is on to go further. Every run of a seed has the same plan.
#ifndef CRUMB_TESTS_SIM_SIM_PLAN_H_
#define CRUMB_TESTS_SIM_SIM_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/keys.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/core/engine_limits.h"
#include "cachesvc/core/nvme_rules.h"
#include "cachesvc/core/policy_kind.h"
#include "storage/segment/segment_log.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {

// What a worker may do at random; weights out of their sum, 0 = never in this seed.
struct Workload {
  uint32_t put = 30, get = 40, lookup = 12, erase = 4, pin = 3, unpin = 2, cancel = 2, rubbish = 0;
  uint32_t page_put = 4, prefetch = 0;
  uint32_t durable_percent = 40;
  uint32_t wait_percent = 10;  // of gets
  uint32_t parent_percent = 50;
  uint64_t pause_us_max = 200;
};

struct DaemonPlan {
  EngineLimits limits;
  uint64_t pool_bytes = 2u << 20;
  PolicyKind policy = PolicyKind::kS3Fifo;
  NvmeAdmission admission = NvmeAdmission::kAll;
  NvmePromotion promotion = NvmePromotion::kFirst;
  DiskUpkeep upkeep;
  uint8_t fresh_percent = 25;
  uint64_t fresh_idle_us = 30'000;
  uint8_t max_lossy_depth = 255;
  bool has_disk = true;
  uint64_t disk_bytes = 0;
  SegmentLogOptions log;  // limits alone; sizes and identity are filled in
  SimDeviceOptions device;
  SimQueueOptions queue;
  SimTransportOptions transport;
  uint64_t format_seed = 1;
  uint64_t cut_power_after = UINT64_MAX;  // device operations, also during recovery
};

// Chances in percent, per fault tick, unless said otherwise.
struct FaultPlan {
  uint32_t rot = 0;
  uint32_t die = 0;
  uint32_t cut_off = 0;    // one worker from one daemon
  uint32_t partition = 0;  // one daemon from everybody, or one worker
  uint32_t flush = 0;
  uint32_t stall = 0;    // a disk that answers nothing for a while
  uint32_t pause = 0;    // a daemon that does not run for a while
  uint32_t restart = 0;  // a daemon that is killed, loses its power, or stops in good order
  uint32_t clean_percent = 0, power_percent = 50;  // of the restarts
  bool crash_in_recovery = false;
  uint64_t down_us_max = 100'000;
};

struct SwarmPlan {
  uint32_t keys = 0;
  uint32_t workers = 1;
  uint64_t requests = 0;   // answered, roughly, in all
  uint32_t lives_max = 1;  // of one daemon
  ClusterSecret secret;    // one for all daemons, as in a cluster
  std::vector<DaemonPlan> daemons;
  Workload workload;
  FaultPlan faults;
};

SwarmPlan DrawPlan(Rng& rng);
// For people: one line of what is on.
std::string Describe(const SwarmPlan& plan);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_PLAN_H_
