// First fit over a bitmap; the walk is over the area's units, 16 Ki for 64 MiB.
#include "client/src/bounce_area.h"

#include <string>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb::client {

BounceArea::BounceArea(std::unique_ptr<SharedMemory> memory)
    : memory_(std::move(memory)), used_(memory_->bytes() / kUnit) {}

absl::StatusOr<std::unique_ptr<BounceArea>> BounceArea::Create(uint64_t bytes) {
  std::unique_ptr<SharedMemory> memory;
  const Status status = SharedMemory::Create(SlotBytes(bytes), &memory);
  if (!status.ok()) return absl::ResourceExhaustedError("bounce_bytes: " + status.message);
  return std::unique_ptr<BounceArea>(new BounceArea(std::move(memory)));
}

uint32_t BounceArea::Take(uint64_t slot_bytes) {
  CRUMB_CHECK(slot_bytes != 0 && slot_bytes % kUnit == 0);
  const uint64_t units = slot_bytes / kUnit;
  if (units > used_.size() - units_used_) return kNone;
  const uint64_t slots = used_.size() / units;
  for (uint64_t slot = 0; slot < slots; ++slot) {
    uint64_t unit = 0;
    while (unit < units && !used_[slot * units + unit]) ++unit;
    if (unit < units) continue;
    for (unit = 0; unit < units; ++unit) used_[slot * units + unit] = true;
    units_used_ += units;
    return static_cast<uint32_t>(slot);
  }
  return kNone;
}

void BounceArea::Give(uint32_t slot, uint64_t slot_bytes) {
  const uint64_t units = slot_bytes / kUnit;
  CRUMB_CHECK(units != 0 && slot < used_.size() / units);
  for (uint64_t unit = slot * units; unit < (slot + uint64_t{1}) * units; ++unit) {
    CRUMB_CHECK(used_[unit]);
    used_[unit] = false;
  }
  units_used_ -= units;
}

MutableBytes BounceArea::At(uint32_t slot, uint64_t slot_bytes) const {
  CRUMB_CHECK(slot < bytes() / slot_bytes);
  return {memory_->data() + slot * slot_bytes, slot_bytes};
}

}  // namespace crumb::client
