// The memory that a simulated worker lends: for each layout an area of contiguous pages, and for
// the exact layout also paged tensors with K and V fused in one row, as engines have them. Slots
// that no request holds are watched: the daemon must not write to them.
#ifndef CRUMB_TESTS_SIM_LENT_MEMORY_H_
#define CRUMB_TESTS_SIM_LENT_MEMORY_H_

#include <cstdint>
#include <vector>

#include "cachesvc/net/region_set.h"
#include "tests/sim/sim_core.h"
#include "tests/sim/sim_layouts.h"

namespace crumb::sim {

// Also the region set's number.
enum class LentArea : uint8_t { kNone = 0, kPages1 = 1, kPages2 = 2, kPages3 = 3, kTensors = 4 };

// One block's room: a page slot, or kTensorSlotsPerBlock engine slots.
struct LentSlot {
  LentArea area = LentArea::kNone;
  uint32_t index = 0;
  bool valid() const { return area != LentArea::kNone; }
};

inline constexpr uint32_t kTensorSlotsPerBlock = 4;

class LentMemory {
 public:
  LentMemory(SimContext* context, const std::vector<SimLayout>* layouts);

  MutableBytes memory() { return absl::MakeSpan(memory_); }
  static LentArea PagesOf(const SimLayout& layout) { return static_cast<LentArea>(layout.handle); }
  RegionSetSpec Spec(LentArea area) const;

  // An unused slot; invalid if there is none. Checks that nobody wrote to it meanwhile.
  LentSlot Take(LentArea area);
  void Give(LentSlot slot);

  // The numbers that a wire block carries for it.
  std::vector<uint32_t> WireSlots(LentSlot slot) const;
  // A raw page in canonical order, to and from where the worker keeps it.
  void WriteRaw(LentSlot slot, Bytes raw);
  std::vector<uint8_t> ReadRaw(LentSlot slot) const;
  // `bytes` of any form; page areas only.
  Bytes ReadBytes(LentSlot slot, uint64_t bytes) const;

 private:
  struct Slot {
    bool taken = false;
    uint64_t content = 0;  // while not taken
  };
  struct Area {
    uint64_t offset = 0;
    uint64_t slot_bytes = 0;  // of one LentSlot
    std::vector<Slot> slots;
  };
  const Area& area(LentArea which) const { return areas_[static_cast<size_t>(which)]; }
  uint64_t Content(LentSlot slot) const;
  // Calls visit(offset in memory, offset in the raw page, bytes) for every row of a tensor slot.
  template <typename Visit>
  void ForEachRow(LentSlot slot, Visit visit) const;

  SimContext* const context_;
  const std::vector<SimLayout>* const layouts_;
  std::vector<Area> areas_;
  std::vector<uint8_t> memory_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_LENT_MEMORY_H_
