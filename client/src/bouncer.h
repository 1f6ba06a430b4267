// Bouncer: values of private memory on their way through bounce areas. A request takes a slot per
// block when it is sent and gives them back when it is answered, whatever became of it: until then
// the daemon may touch them. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_BOUNCER_H_
#define CRUMB_CLIENT_SRC_BOUNCER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/src/bounce_area.h"
#include "client/src/data_plane.h"

namespace crumb::client {

// Where a region set bounces.
struct BounceSet {
  BounceArea* area = nullptr;
  uint64_t slot_bytes = 0;
};

class Bouncer {
 public:
  // Of the area that all sets share.
  explicit Bouncer(uint64_t bytes) : bytes_(bytes) {}

  // A place for values of up to `value_bytes`: the shared area, or for one that is larger than that
  // an area of its own with one slot.
  absl::StatusOr<BounceSet> SetFor(uint64_t value_bytes);

  // Takes slots and, for a put, copies the values into them. kBusy: no room, nothing was taken;
  // kInvalid: there never will be. The slots stay valid until Give.
  BlockResult Take(const BounceSet& set, std::shared_ptr<const PlaneRequest> request);
  absl::Span<const uint32_t> SlotsOf(uint64_t id) const;
  // Its worker has been told that it failed: private memory is not touched for it any more.
  bool Abandon(uint64_t id);
  // The answer came (or never will: null): delivers and verifies a get into `reply`, gives the
  // slots back. False: not a request of ours.
  bool Give(uint64_t id, PlaneReply* reply);

  uint64_t used_bytes() const;

 private:
  struct Trip {
    std::shared_ptr<const PlaneRequest> request;
    BounceSet set;
    std::vector<uint32_t> slots;
    bool abandoned = false;
  };
  void Deliver(const Trip& trip, PlaneReply* reply);

  const uint64_t bytes_;
  std::vector<std::unique_ptr<BounceArea>> areas_;  // the shared one first
  std::vector<Trip> trips_;                         // slab
  std::vector<uint32_t> free_trips_;
  absl::flat_hash_map<uint64_t, uint32_t> by_id_;
  LentMemory::Scratch scratch_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_BOUNCER_H_
