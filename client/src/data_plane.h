// The seam between the Client and the way its data travels: UCX active messages with lent memory,
// or gRPC streams. Thread: the Client's. PROMISE: a request that Submit took is answered by Poll
// exactly once, or the plane says lost(); after either, the lent memory it named is not touched by
// this process's side any more.
#ifndef CRUMB_CLIENT_SRC_DATA_PLANE_H_
#define CRUMB_CLIENT_SRC_DATA_PLANE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/wire.h"
#include "client/src/lent_memory.h"

namespace crumb::client {

struct PlaneRequest {
  uint64_t id = 0;  // unique among requests in flight
  WireType type = WireType::kGet;
  uint16_t flags = 0;  // kWireFlag*
  PageForm form = PageForm::kRaw;
  uint32_t layout_handle = 0;  // the daemon's
  uint32_t region_set = 0;
  std::shared_ptr<const LentMemory> memory;  // null: lookup and delete
  uint32_t deadline_ms = 0;
  uint32_t wait_ms = 0;
  uint32_t grace_ms = 0;
  std::vector<WireBlock> blocks;
  std::vector<uint64_t> raw_bytes;  // put: length of each value in lent memory
  std::vector<uint32_t> slots;      // slots_per_block for each block
  uint32_t slots_per_block = 0;

  absl::Span<const uint32_t> SlotsOf(size_t block) const {
    return absl::MakeConstSpan(slots).subspan(block * slots_per_block, slots_per_block);
  }
};

struct PlaneReply {
  uint64_t id = 0;
  std::vector<WireBlockReply> blocks;
  std::vector<std::string> notes;  // per block, or empty
};

class Plane {
 public:
  virtual ~Plane() = default;
  // kOk, kBusy or kUnavailable; only kOk leads to a reply.
  virtual BlockResult Submit(std::shared_ptr<const PlaneRequest> request) = 0;
  // Progress; appends what finished.
  virtual void Poll(std::vector<PlaneReply>* replies) = 0;
  // Prepares for sleep on wake_fd; false = there is work, poll again.
  virtual bool Arm() = 0;
  virtual int wake_fd() const = 0;
  // Makes lent memory reachable under `region_set`; the layout is the daemon's handle.
  virtual absl::Status Lend(uint32_t region_set, uint32_t layout_handle,
                            const LentMemory& memory) = 0;
  virtual void Unlend(uint32_t region_set) = 0;
  // The other side is gone; nothing will be answered any more.
  virtual bool lost() const = 0;
  virtual std::string Describe() const = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_DATA_PLANE_H_
