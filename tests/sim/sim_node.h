// One daemon's place in a simulation, over all its lives: the disk that outlives them, the model of
// what it promised, what the medium did to it, and the sums of what its lives counted. One thread.
#ifndef CRUMB_TESTS_SIM_SIM_NODE_H_
#define CRUMB_TESTS_SIM_SIM_NODE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/segment/log_head.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_model.h"
#include "tests/sim/sim_plan.h"

namespace crumb::sim {

class SimNode {
 public:
  SimNode(SimContext* context, const SimOptions& options, const SwarmPlan& plan, uint32_t number,
          KeySpace* space);
  ~SimNode();

  uint32_t number() const { return number_; }
  const DaemonPlan& plan() const { return plan_; }
  Model& model() { return model_; }
  SimDaemon* daemon() { return daemon_.get(); }  // null: it is down
  bool up() const { return daemon_ != nullptr; }
  // Up, and neither paused nor out of power.
  bool runs() const { return up() && !paused() && !daemon_->dead(); }
  uint32_t lives() const { return lives_; }

  // False: the power went out in it, or the run has failed.
  bool Start();
  // Its process is gone: the model is told, the counters are kept. Clients are closed by the
  // caller.
  void End();
  // One turn of its loop, unless it is paused. Returns the work done.
  int Turn();
  bool Arm() { return !runs() || daemon_->Arm(); }
  uint64_t next_us() const;
  void Pause(uint64_t until_us) { paused_until_us_ = until_us; }
  bool paused() const { return context_->clock.now_us() < paused_until_us_; }

  // Flips a bit of a stored record, or now and then of anything else on the disk.
  void Rot();
  // Of one layout, or of everything.
  void Flush(bool everything);
  uint64_t flushes_in_flight() const { return flushes_in_flight_; }
  // For a stop in good order: promises what was hit between the two.
  void BeginStop();
  void PromiseHits();
  void CheckCounters();  // at the end of the run
  void AddTo(SimResult* result) const;

 private:
  void Absorb();
  void UpdateKeeps();
  absl::StatusOr<LogHead> Head() const;
  bool CopiesAreKnown(uint64_t block, Bytes before) const;
  void NoteDamage(const IoRequest& request);
  void NoteOverwrite(uint64_t offset, uint32_t bytes);
  bool ExcuseHeader(Bytes block);

  SimContext* const context_;
  const SimOptions& options_;
  const uint32_t number_;
  const DaemonPlan plan_;
  const ClusterSecret secret_;
  const bool crash_in_recovery_;
  SimDisk disk_;
  Model model_;
  std::unique_ptr<SimDaemon> daemon_;
  EngineStats stats_;  // of the last turn
  SimResult sums_;
  uint32_t lives_ = 0;
  uint64_t paused_until_us_ = 0;
  uint64_t flushes_in_flight_ = 0;
  uint64_t life_ = 0;
  uint64_t given_up_ = 0;  // segments, by lives that are over
  Moment stop_since_ = 0;
  uint64_t fresh_dropped_ = 0;  // before it
  bool index_was_full_ = false;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_NODE_H_
