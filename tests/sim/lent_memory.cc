// Areas, slots and the way of rows in the memory of a simulated worker.
#include "tests/sim/lent_memory.h"

#include <algorithm>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/page_header.h"

namespace crumb::sim {
namespace {

constexpr uint32_t kSlotsPerArea = 24;
constexpr uint32_t kTokensPerSlot = kSimPageTokens / kTensorSlotsPerBlock;
constexpr uint64_t kGuardBytes = 512;  // between areas; nobody's

// The exact layout: 2 layers, 2 heads, K and V of 64 bf16.
constexpr uint32_t kLayers = 2, kHeads = 2;
constexpr uint64_t kRow = 128;                        // one head's K or V of one token
constexpr uint64_t kTokenStride = 2 * kHeads * kRow;  // K of all heads, then V
constexpr uint64_t kSlotStride = kTokensPerSlot * kTokenStride;

}  // namespace

LentMemory::LentMemory(SimContext* context, const std::vector<SimLayout>* layouts)
    : context_(context), layouts_(layouts), areas_(5) {
  uint64_t offset = kGuardBytes;
  for (size_t i = 1; i < areas_.size(); ++i) {
    Area& area = areas_[i];
    area.offset = offset;
    if (static_cast<LentArea>(i) == LentArea::kTensors) {
      area.slot_bytes = kTensorSlotsPerBlock * kLayers * kSlotStride;
    } else {
      uint64_t raw_max = 0;
      for (const PartShape& part : (*layouts_)[i - 1].binding.layout->parts()) {
        raw_max = std::max(raw_max, part.raw_bytes);
      }
      area.slot_bytes = PageSlotBytes(raw_max);
    }
    area.slots.resize(kSlotsPerArea);
    offset += kSlotsPerArea * area.slot_bytes + kGuardBytes;
  }
  memory_.assign(offset, 0x3c);
  for (size_t i = 1; i < areas_.size(); ++i) {
    for (uint32_t j = 0; j < kSlotsPerArea; ++j) {
      areas_[i].slots[j].content = Content({static_cast<LentArea>(i), j});
    }
  }
}

RegionSetSpec LentMemory::Spec(LentArea which) const {
  const Area& of = area(which);
  RegionSetSpec spec;
  const uint64_t address = reinterpret_cast<uint64_t>(memory_.data()) + of.offset;
  if (which != LentArea::kTensors) {
    spec.regions.push_back(
        {.address = address, .bytes = kSlotsPerArea * of.slot_bytes, .rkey = {}});
    spec.slots = kSlotsPerArea;
    spec.slot_bytes = of.slot_bytes;
    return spec;
  }
  spec.slots = kSlotsPerArea * kTensorSlotsPerBlock;
  spec.slots_per_block = kTensorSlotsPerBlock;
  const uint64_t layer_bytes = spec.slots * kSlotStride;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    spec.regions.push_back(
        {.address = address + layer * layer_bytes, .bytes = layer_bytes, .rkey = {}});
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      spec.tensors.push_back({.region = layer,
                              .offset = tensor * kHeads * kRow,
                              .slot_stride = kSlotStride,
                              .token_stride = kTokenStride,
                              .head_stride = kRow});
    }
  }
  return spec;
}

template <typename Visit>
void LentMemory::ForEachRow(LentSlot slot, Visit visit) const {
  const Area& of = area(slot.area);
  const std::vector<uint32_t> numbers = WireSlots(slot);
  const uint64_t layer_bytes = kSlotsPerArea * kTensorSlotsPerBlock * kSlotStride;
  uint64_t raw = 0;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (uint32_t token = 0; token < kSimPageTokens; ++token) {
          const uint64_t at = of.offset + layer * layer_bytes + tensor * kHeads * kRow +
                              numbers[token / kTokensPerSlot] * kSlotStride +
                              token % kTokensPerSlot * kTokenStride + head * kRow;
          visit(at, raw, kRow);
          raw += kRow;
        }
      }
    }
  }
}

std::vector<uint32_t> LentMemory::WireSlots(LentSlot slot) const {
  if (slot.area != LentArea::kTensors) return {slot.index};
  // Scattered and backwards, as block tables are.
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < kTensorSlotsPerBlock; ++i) {
    numbers.push_back((kTensorSlotsPerBlock - 1 - i) * kSlotsPerArea + slot.index);
  }
  return numbers;
}

uint64_t LentMemory::Content(LentSlot slot) const {
  const Area& of = area(slot.area);
  if (slot.area != LentArea::kTensors) {
    return Xxh3({memory_.data() + of.offset + slot.index * of.slot_bytes, of.slot_bytes});
  }
  return Xxh3(ReadRaw(slot));
}

LentSlot LentMemory::Take(LentArea which) {
  std::vector<Slot>& slots = areas_[static_cast<size_t>(which)].slots;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i].taken) continue;
    const LentSlot slot{which, i};
    if (Content(slot) != slots[i].content) {
      context_->Fail("lent memory was written to after the request that named it was answered");
    }
    slots[i].taken = true;
    return slot;
  }
  return {};
}

void LentMemory::Give(LentSlot slot) {
  Slot& entry = areas_[static_cast<size_t>(slot.area)].slots[slot.index];
  CRUMB_CHECK(entry.taken);
  entry.taken = false;
  entry.content = Content(slot);
}

void LentMemory::WriteRaw(LentSlot slot, Bytes raw) {
  const Area& of = area(slot.area);
  if (slot.area != LentArea::kTensors) {
    CRUMB_CHECK(raw.size() <= of.slot_bytes);
    std::memcpy(memory_.data() + of.offset + slot.index * of.slot_bytes, raw.data(), raw.size());
    return;
  }
  ForEachRow(slot, [&](uint64_t at, uint64_t from, uint64_t bytes) {
    std::memcpy(memory_.data() + at, raw.data() + from, bytes);
  });
}

std::vector<uint8_t> LentMemory::ReadRaw(LentSlot slot) const {
  std::vector<uint8_t> raw(kLayers * 2 * kHeads * kSimPageTokens * kRow);
  ForEachRow(slot, [&](uint64_t at, uint64_t to, uint64_t bytes) {
    std::memcpy(raw.data() + to, memory_.data() + at, bytes);
  });
  return raw;
}

Bytes LentMemory::ReadBytes(LentSlot slot, uint64_t bytes) const {
  const Area& of = area(slot.area);
  CRUMB_CHECK(slot.area != LentArea::kTensors && bytes <= of.slot_bytes);
  return {memory_.data() + of.offset + slot.index * of.slot_bytes, bytes};
}

}  // namespace crumb::sim
