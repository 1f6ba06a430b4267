// One life of the daemon in the simulator: everything volatile. The disk outlives it.
#ifndef CRUMB_TESTS_SIM_SIM_DAEMON_H_
#define CRUMB_TESTS_SIM_SIM_DAEMON_H_

#include <cstdint>
#include <memory>

#include "cachesvc/core/engine.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_transport.h"
#include "tests/sim/sim_world.h"

namespace crumb::sim {

struct DaemonPlan {
  uint64_t pool_bytes = 2u << 20;
  SimDeviceOptions device;
  ClusterSecret secret;
  uint64_t format_seed = 1;
  uint64_t cut_power_after = UINT64_MAX;  // device operations, also during recovery
};

class SimDaemon {
 public:
  // Null: start-up failed or the power went out in it; without the latter that fails the run.
  static std::unique_ptr<SimDaemon> Start(SimContext* context, SimDisk* disk,
                                          const DaemonPlan& plan, const SimOptions& options);
  ~SimDaemon();

  Engine& engine() { return *engine_; }
  SimTransport& transport() { return *transport_; }
  SimBlockDevice& device() { return *device_; }

  // One turn of the shard's loop; returns the work done. Checks the bounds.
  int Turn();
  // What the loop does before it sleeps.
  bool Arm() { return engine_->Arm(); }
  // Nothing that could still finish.
  bool idle() const;
  // Every promise about a daemon at rest without client pins.
  void CheckAtRest() const;
  // SIGKILL, or a power cut.
  void Crash(bool power);
  // As SIGTERM: drains, closes the log.
  void StopCleanly();

 private:
  SimDaemon(SimContext* context, const EngineLimits& limits) : context_(context), limits_(limits) {}
  absl::Status Build(SimDisk* disk, const DaemonPlan& plan, const SimOptions& options);
  void CheckBounds() const;

  SimContext* const context_;
  const EngineLimits limits_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<SimDeviceQueue> queue_;
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<Transport> wrapped_transport_;
  std::unique_ptr<SimBlockDevice> device_;
  std::unique_ptr<BlockDevice> wrapped_device_;
  std::unique_ptr<SegmentLog> log_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_DAEMON_H_
