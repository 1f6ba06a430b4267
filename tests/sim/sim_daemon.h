// One life of the daemon in the simulator: everything volatile. The disk outlives it.
#ifndef CRUMB_TESTS_SIM_SIM_DAEMON_H_
#define CRUMB_TESTS_SIM_SIM_DAEMON_H_

#include <cstdint>
#include <memory>

#include "cachesvc/core/engine.h"
#include "tests/sim/sim_device_queue.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_plan.h"
#include "tests/sim/sim_transport.h"
#include "tests/sim/sim_world.h"

namespace crumb::sim {

class SimDaemon {
 public:
  // Null: start-up failed or the power went out in it; without the latter that fails the run.
  static std::unique_ptr<SimDaemon> Start(SimContext* context, SimDisk* disk,
                                          const DaemonPlan& plan, const SimOptions& options,
                                          const ClusterSecret& secret);
  ~SimDaemon();

  Engine& engine() { return *engine_; }
  SimTransport& transport() { return *transport_; }
  bool has_log() const { return log_ != nullptr; }
  SimBlockDevice* device() { return device_.get(); }  // null: no disk tier
  bool dead() const { return device_ != nullptr && device_->dead(); }
  void StopFaults();

  // One turn of the shard's loop; returns the work done. Every few turns, or every one if there are
  // few enough index entries to run out of, checks the bounds and takes the engine's stats.
  int Turn(EngineStats* stats);
  // What the loop does before it sleeps.
  bool Arm() { return engine_->Arm(); }
  // Nothing that could still finish.
  bool idle() const;
  // Every promise about a daemon at rest without client pins.
  void CheckAtRest(uint64_t workers) const;
  // SIGKILL, or a power cut.
  void Crash(bool power);
  // As SIGTERM: drains, ...
  void BeginDrain();
  bool drained() const { return drained_; }
  // ... and closes the log.
  void Close();

 private:
  SimDaemon(SimContext* context, const DaemonPlan& plan) : context_(context), plan_(plan) {}
  absl::Status Build(SimDisk* disk, const SimOptions& options, const ClusterSecret& secret);
  absl::Status OpenLog(SimDisk* disk, const SimOptions& options, const ClusterSecret& secret);
  void CheckBounds(const EngineStats& stats) const;

  SimContext* const context_;
  const DaemonPlan plan_;
  bool drained_ = false;
  uint64_t turns_ = 0;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<SimDeviceQueue> queue_;
  std::unique_ptr<DeviceQueue> wrapped_queue_;
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<Transport> wrapped_transport_;
  std::unique_ptr<SimBlockDevice> device_;
  std::unique_ptr<BlockDevice> wrapped_device_;
  std::unique_ptr<SegmentLog> log_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_DAEMON_H_
