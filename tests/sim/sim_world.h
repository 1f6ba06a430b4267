// One simulation: some daemons (each the real engine, segment log and page pool over simulated
// clock, transport, block device and device queue), some workers that talk to all of them, a plan
// of faults drawn from the seed, and the rules that must hold throughout. See docs/testing.md.
// Daemons do not talk to each other yet: what one knows of another is a page that a worker got
// there and puts here. Links between daemons belong into World, beside those of the workers.
#ifndef CRUMB_TESTS_SIM_SIM_WORLD_H_
#define CRUMB_TESTS_SIM_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/net/transport.h"
#include "gpu/device/device_queue.h"
#include "storage/device/block_device.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_layouts.h"

namespace crumb::sim {

// Seams that lie, for the proof that lies are found: each wraps a seam of every daemon that a
// simulation starts.
struct Planted {
  std::function<std::unique_ptr<BlockDevice>(BlockDevice*)> device;
  std::function<std::unique_ptr<Transport>(Transport*)> transport;
  std::function<std::unique_ptr<DeviceQueue>(DeviceQueue*)> queue;
  std::string mutation;  // of the product's own code; empty: none (mutation.h)
};

struct SimOptions {
  uint64_t seed = 1;
  Echo echo = Echo::kQuiet;
  const std::vector<SimLayout>* layouts = nullptr;
  Planted planted;
};

struct SimResult {
  std::string failure;  // empty: every rule held
  std::string plan;     // what the seed did, in a line
  uint64_t trace_hash = 0;
  uint64_t trace_events = 0;
  uint64_t simulated_us = 0;  // without the hour in which pins run out at the end
  uint64_t answers = 0, hits = 0, misses = 0, promised_hits = 0;
  uint64_t nvme_hits = 0, evictions = 0, promoted = 0, demotions = 0;
  uint64_t lives = 0, damaged = 0, corrupt_counted = 0, recovered = 0, reclaimed = 0;
};

SimResult RunSimulation(const SimOptions& options);

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_WORLD_H_
