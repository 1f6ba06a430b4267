// BounceArea: sealed shared memory of the library's own, cut into slots, through which values of
// memory that is not shared travel. A slot of `slot_bytes` has an index in a region set of slots of
// that size over the whole area; sizes may be mixed. First fit from the start, so that only what is
// used at once takes memory. Must never hand out a byte twice. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_BOUNCE_AREA_H_
#define CRUMB_CLIENT_SRC_BOUNCE_AREA_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "crumb/shared_memory.h"

namespace crumb::client {

class BounceArea {
 public:
  static constexpr uint64_t kUnit = 4096;
  static constexpr uint32_t kNone = UINT32_MAX;

  static absl::StatusOr<std::unique_ptr<BounceArea>> Create(uint64_t bytes);
  // The size of slots that hold values of `bytes`.
  static uint64_t SlotBytes(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

  const SharedRange& range() const { return memory_->range(); }
  uint64_t bytes() const { return used_.size() * kUnit; }
  uint64_t used_bytes() const { return units_used_ * kUnit; }

  // Index of a free slot, which is the caller's then; kNone: no room.
  uint32_t Take(uint64_t slot_bytes);
  void Give(uint32_t slot, uint64_t slot_bytes);
  MutableBytes At(uint32_t slot, uint64_t slot_bytes) const;

 private:
  explicit BounceArea(std::unique_ptr<SharedMemory> memory);

  std::unique_ptr<SharedMemory> memory_;
  std::vector<bool> used_;  // by unit
  uint64_t units_used_ = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_BOUNCE_AREA_H_
