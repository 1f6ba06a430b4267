// PagePool: slots for pages over one registered arena, with pins: one that it maps, or memory of
// any kind that somebody else owns, say a GPU's. The arena is cut in two areas.
//   main     slots of stored pages. Slabs hold slots of one size class and kind each and change
//            that only when empty; a class whose size fits a slab badly takes a run of slabs.
//            Fresh pages are a kind of their own: they leave together, and whole slabs empty.
//   staging  short-lived buffers of operations in flight (raw pages, reads from NVMe), first fit,
//            so that a pool full of stored or pinned pages can never stop a transfer; one half for
//            what comes in, one for what goes out, so that neither can starve the other.
// One thread (the shard). No allocation after Create. Memory of pages is never read or written
// here. INVARIANT: every slot is free or owned by exactly one index entry or operation; a slot is
// reused only when its owner released it and its pin count is zero.
#ifndef CRUMB_GPU_POOL_PAGE_POOL_H_
#define CRUMB_GPU_POOL_PAGE_POOL_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct SlotId {
  uint32_t value = 0xffffffff;  // in units of kPageAlignment from the arena's start
  bool valid() const { return value != 0xffffffff; }
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

inline constexpr uint64_t kNoStaging = 1;  // bytes, rounded down to none

struct PagePoolOptions {
  uint64_t bytes = 0;          // both areas together; of CreateOver: 0 is all of the memory
  uint64_t staging_bytes = 0;  // 0: a quarter of `bytes`, at least 64 MiB or half, at most 1 GiB
  uint64_t slab_bytes = 0;     // 0: bytes / 64 as a power of two in [64 KiB, 4 MiB]
  uint32_t waste_share = 8;    // a class takes longer runs while 1 / share of one would be wasted
  bool hugepages = false;      // MAP_HUGETLB if the kernel has them, else madvise; Create's alone
};

enum class SlabKind : uint8_t { kLasting = 0, kFresh = 1 };
enum class StageHalf : uint8_t { kIn = 0, kOut = 1 };

inline constexpr uint64_t kPoolBytesMin = 1ull << 20;
inline constexpr uint64_t kPoolBytesMax = 8ull << 40;

class PagePool {
 public:
  // INVALID_ARGUMENT names the field and the range; RESOURCE_EXHAUSTED if the kernel refuses.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(const PagePoolOptions& options);
  // Over memory that outlives the pool. A device address will do: it is a number here. Multiples of
  // kPageAlignment. INVALID_ARGUMENT names the field and the range.
  static absl::StatusOr<std::unique_ptr<PagePool>> CreateOver(MutableBytes memory,
                                                              const PagePoolOptions& options);
  ~PagePool();

  // A slot of at least `bytes` (rounded up to kPageAlignment), owned by the caller, unpinned.
  // Invalid when no free slot of that class and kind and no empty slab is left: evict and retry.
  SlotId Allocate(uint64_t bytes, SlabKind kind = SlabKind::kLasting);
  // The same from one half of the staging area; released like any slot. Invalid when it is full.
  SlotId AllocateStaging(uint64_t bytes, StageHalf half);
  // Ends ownership; the memory is reused once the last pin is gone.
  void Release(SlotId slot);
  void Pin(SlotId slot);
  void Unpin(SlotId slot);

  uint32_t pins(SlotId slot) const;
  MutableBytes memory(SlotId slot) const;  // whole slot, page aligned
  // The class size that `bytes` would take.
  static uint64_t ClassBytes(uint64_t bytes);
  // True if Allocate (AllocateStaging) of `bytes` succeeds in an empty pool.
  bool CanEverFit(uint64_t bytes) const;
  bool CanEverStage(uint64_t bytes) const;

  // When no slab run is free for the class of `bytes` and the class has nothing to evict, a run of
  // other classes must be emptied. BeginClear picks one without pinned slots, around `hint` if it
  // can, and closes it: Allocate of other classes keeps out. False if every run has a pin. One run
  // at a time; it opens again when Allocate takes it or with CancelClear.
  bool BeginClear(uint64_t bytes, SlotId hint, SlabKind kind = SlabKind::kLasting);
  // Owned slots that still lie in the closed run: release them.
  size_t NextToClear(absl::Span<SlotId> out) const;
  void CancelClear();
  uint64_t clearing_bytes() const;  // class size that a run is closed for; 0: none is
  SlabKind clearing_kind() const;   // and its kind

  MutableBytes arena() const;       // what CreateOver was given, in whole
  uint64_t capacity_bytes() const;  // of the main area
  uint64_t used_bytes() const;      // main slots that are owned or pinned, by class size
  uint64_t pinned_slots() const;    // main slots with at least one pin
  uint64_t used_slots() const;      // main
  uint64_t free_slabs() const;
  SlabKind kind(SlotId slot) const;   // of a main slot
  uint64_t fresh_used_bytes() const;  // of used_bytes, in fresh slabs
  uint64_t fresh_slab_bytes() const;  // of the slabs that hold them
  // True if a fresh page of `bytes` finds a slot without more than `limit` bytes of fresh slabs:
  // one that is free in them, or one of a run that may yet become fresh.
  bool FreshFits(uint64_t bytes, uint64_t limit) const;
  uint64_t RunBytes(uint64_t bytes) const;  // of the run of slabs that its class takes; 0: never
  uint64_t staging_capacity_bytes() const;  // both halves
  uint64_t staging_used_bytes() const;
  uint64_t staging_free_bytes(StageHalf half) const;

 private:
  PagePool();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_PAGE_POOL_H_
