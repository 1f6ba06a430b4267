// WorkerCodec: pages of this process's GPU memory, packed and unpacked by its own kernels. A
// request becomes a trip: kernels pack into slots of a staging area that the daemon maps, the
// daemon takes them from there, and the other way round. Raw pages take the same way as they are:
// where the daemon wants them raw, where a page does not fit its codec, and where there is no
// kernel. A trip that finds less room than it needs goes in several pieces. Never waits, but in the
// destructor: nothing is freed that a stream still uses. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_WORKER_CODEC_H_
#define CRUMB_CLIENT_SRC_WORKER_CODEC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cachesvc/base/clock.h"
#include "client/src/bounce_area.h"
#include "client/src/data_plane.h"
#include "client/src/trip.h"
#include "client/src/worker_set.h"

namespace crumb::client {

struct WorkerCodecParts {
  std::unique_ptr<WorkerGpu> gpu;
  const GpuGate* gate = nullptr;  // outlives it
  Plane* inner = nullptr;         // to the daemon; outlives it
  const Clock* clock = nullptr;   // outlives it
  uint64_t staging_bytes = 0;
};

class WorkerCodec {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerCodec>> Create(WorkerCodecParts parts);
  // Waits for the kernels in flight; whatever was asked for is not answered.
  ~WorkerCodec();

  absl::Status Lend(const LendOrder& order, const LayoutCodecs& codecs);
  void Unlend(uint32_t region_set);
  bool Has(uint32_t region_set) const { return sets_.count(region_set) != 0; }

  // As a Plane does, for requests of its region sets.
  BlockResult Submit(std::shared_ptr<const PlaneRequest> request);
  // Nothing: not a request of its own.
  std::optional<bool> Cancel(uint64_t id, CancelKind kind);
  // What the inner plane answered. False: not to a request of its own.
  bool TakeReply(const PlaneReply& reply);
  // Goes on with everything, and adds what is done.
  void Turn(ReplyList* replies);
  uint64_t NextPollUs(uint64_t now_us) const;

 private:
  explicit WorkerCodec(WorkerCodecParts parts) : parts_(std::move(parts)) {}
  absl::StatusOr<StagedSlots> SlotsFor(const LendOrder& order, uint64_t value_bytes);

  // What follows moves one trip as far as it gets.
  void Advance(Trip* trip);
  bool StartPiece(Trip* trip);
  bool RunJobs(Trip* trip);
  GpuJob JobOf(const Trip& trip, uint32_t index) const;
  void EndJobs(Trip* trip);
  bool Send(Trip* trip);
  void OnSent(Trip* trip, const PlaneReply& reply);
  void OnPut(Trip* trip, uint32_t index, const WireBlockReply& reply);
  void OnGot(Trip* trip, uint32_t index, const WireBlockReply& reply);
  BlockResult Inspect(const Trip& trip, uint32_t index, const WireBlockReply& reply) const;
  void Settle(Trip* trip, uint32_t index, BlockResult result);
  void EndAll(Trip* trip, BlockResult result);
  void GiveSlot(Trip* trip, uint32_t index);
  void Finish(Trip* trip);
  MutableBytes At(const Trip& trip, uint32_t index) const;
  void PollGpu();

  WorkerCodecParts parts_;
  std::unique_ptr<BounceArea> area_;
  SharedMap shared_;
  std::shared_ptr<void> registered_;
  // By layout handle of the daemon and bytes of a slot; lent until the session ends.
  std::map<std::pair<uint32_t, uint64_t>, StagedSlots> slots_;
  std::map<uint32_t, std::shared_ptr<WorkerSet>> sets_;  // by region set
  std::vector<std::unique_ptr<Trip>> trips_;             // slab
  std::vector<uint32_t> free_trips_;
  absl::flat_hash_map<uint64_t, uint32_t> by_id_, by_inner_id_;
  std::vector<PlaneReply> done_;
  uint64_t next_inner_ = 0;
  uint64_t gpu_since_us_ = 0;  // when the GPU last had news
  uint32_t hungry_ = 0;        // trips that wait for room
  std::shared_ptr<GpuLink> link_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_WORKER_CODEC_H_
