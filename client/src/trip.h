// Trip: one request on its way between GPU memory of this process and the daemon, piece by piece.
// Plain data of WorkerCodec.
#ifndef CRUMB_CLIENT_SRC_TRIP_H_
#define CRUMB_CLIENT_SRC_TRIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/bounce_area.h"
#include "client/src/data_plane.h"
#include "client/src/worker_set.h"

namespace crumb::client {

struct TripBlock {
  uint32_t slot = BounceArea::kNone;  // in the staging area
  bool settled = false;
  bool packed_ok = false;           // put: kernels say that the payload may be kept
  const GpuCodec* codec = nullptr;  // of the job
  uint32_t tokens = 0;
  uint32_t payload_at = 0;  // in the slot
  WireBlockReply reply;
  std::string note;
};

struct Trip {
  // kRoom: the next piece needs slots. kGpu: jobs are submitted or run. kSend: the daemon must be
  // asked. kWire: it was. A put goes kRoom, kGpu, kSend, kWire; a get kRoom, kSend, kWire, kGpu.
  enum class Step : uint8_t { kFree, kRoom, kGpu, kSend, kWire };

  uint32_t index = 0;
  Step step = Step::kFree;
  std::shared_ptr<const PlaneRequest> request;
  std::shared_ptr<WorkerSet> set;
  std::vector<TripBlock> blocks;
  std::vector<uint32_t> packed, raw;  // blocks that still have to go, in that form
  std::vector<uint32_t> piece;        // those on their way
  bool as_raw = false;                // the piece is
  uint32_t submitted = 0;             // jobs of the piece
  uint32_t running = 0;               // of those, on the GPU
  uint64_t inner_id = 0;              // 0: the daemon was not asked
  uint64_t until_us = 0;
  bool hungry = false;
  bool unheard = true;  // no word of the daemon yet
  bool ended = false;   // cancelled or abandoned: nothing new begins

  bool put() const { return request->type == WireType::kPut; }
  void Reset() {
    const uint32_t own = index;
    *this = Trip();
    index = own;
  }
  const StagedSlots& staged() const { return as_raw ? set->raw : set->packed; }
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_TRIP_H_
