// One simulation: a daemon (the real engine, segment log and page pool over simulated clock,
// transport, block device and device queue), two workers, a plan of faults drawn from the seed, and
// the rules that must hold throughout. See docs/testing.md.
#ifndef CRUMB_TESTS_SIM_SIM_WORLD_H_
#define CRUMB_TESTS_SIM_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/core/engine.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_layouts.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/sim_transport.h"

namespace crumb::sim {

// Seams that lie, for the proof that lies are found: each wraps a seam of every daemon that a
// simulation starts.
struct Planted {
  std::function<std::unique_ptr<BlockDevice>(BlockDevice*)> device;
  std::function<std::unique_ptr<Transport>(Transport*)> transport;
};

struct SimOptions {
  uint64_t seed = 1;
  Echo echo = Echo::kQuiet;
  const std::vector<SimLayout>* layouts = nullptr;
  Planted planted;
};

struct SimResult {
  std::string failure;  // empty: every rule held
  uint64_t trace_hash = 0;
  uint64_t trace_events = 0;
  uint64_t simulated_us = 0;
  uint64_t answers = 0, hits = 0, misses = 0, promised_hits = 0;
  uint64_t nvme_hits = 0, evictions = 0, crashes = 0, damaged = 0, corrupt_counted = 0;
  uint64_t recovered = 0, reclaimed = 0;
};

SimResult RunSimulation(const SimOptions& options);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_WORLD_H_
