// Pages that change their slot while everybody may use them: fresh ones to their final precision,
// packed ones between HBM and DRAM. Plain data; the paths are in demote.cc and moves.cc. One thread
// (the shard), except that a job is a worker's between Submit and the return of its token.
#ifndef CRUMB_CACHESVC_CORE_PAGE_MOVES_H_
#define CRUMB_CACHESVC_CORE_PAGE_MOVES_H_

#include <cstdint>
#include <memory>

#include "cachesvc/core/engine_stats.h"
#include "cachesvc/core/ops.h"

namespace crumb::core {

// kVerify, kGpuSubmit, kGpu, kSeal: instead of kEncode, where a GPU encodes.
enum class DemotionStep : uint8_t {
  kSlot,
  kSubmit,
  kEncode,
  kVerify,
  kGpuSubmit,
  kGpu,
  kSealSubmit,
  kSeal,
  kWrite,
  kWriting
};

// It goes on by itself: with what is on a worker, a GPU or the disk.
constexpr bool ComesBack(DemotionStep step) {
  return step == DemotionStep::kEncode || step == DemotionStep::kVerify ||
         step == DemotionStep::kGpu || step == DemotionStep::kSeal ||
         step == DemotionStep::kWriting;
}

// A fresh page on its way to its final precision: encoded from its raw slot into another one, which
// then becomes the entry's. Both slots are held until it ends.
struct Demotion {
  bool used = false;
  uint32_t generation = 0;
  EntryId entry = kNoId;  // kNoId: forgotten or replaced meanwhile
  DemotionReason reason = DemotionReason::kDescendant;
  DemotionStep step = DemotionStep::kSlot;
  bool stuck = false;  // no slot can be had, nothing on its way brings one
  std::shared_ptr<const Binding> binding;
  uint32_t part = 0;
  SlotId source, target;
  DiskLocation location;  // of the new image, once it was written
  uint32_t rung = 0;      // of the ladder
  uint64_t started_us = 0;
  PageJob job;
};

enum class MoveStep : uint8_t { kSlot, kCopy, kCopying, kSeal, kSealing };

// A packed page on its way between HBM and DRAM. The source is pinned, the target becomes the
// entry's if the entry is still the same then.
struct Move {
  bool used = false;
  uint32_t generation = 0;
  EntryId entry = kNoId;
  uint32_t entry_generation = 0;
  bool raise = false;  // DRAM to HBM; else the other way
  MoveStep step = MoveStep::kSlot;
  SlotId source, target;
  uint32_t payload_bytes = 0;
  PageJob job;          // lowering: the header is sealed when the bytes are there
  List<Block> waiters;  // for a page in DRAM
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_PAGE_MOVES_H_
