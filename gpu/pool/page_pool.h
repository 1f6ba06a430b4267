// PagePool: slots of a few size classes over one registered arena, with pins. Slabs of 4 MiB (or
// one slot, if larger) hold slots of one class and change class only when empty. One thread (the
// shard). No allocation after Create.
// INVARIANT: every slot is free or owned by exactly one index entry or operation; a slot is reused
// only when its owner released it and its pin count is zero.
#ifndef CRUMB_GPU_POOL_PAGE_POOL_H_
#define CRUMB_GPU_POOL_PAGE_POOL_H_

#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct SlotId {
  uint32_t value = 0xffffffff;
  bool valid() const { return value != 0xffffffff; }
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

struct PagePoolOptions {
  uint64_t bytes = 0;
  bool hugepages = false;  // MAP_HUGETLB if the kernel has them, else madvise
};

class PagePool {
 public:
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(const PagePoolOptions& options);
  ~PagePool();

  // A slot of at least `bytes` (rounded up to kPageAlignment), owned by the caller, unpinned.
  // Invalid when no free slot of that class and no empty slab is left: evict and retry.
  SlotId Allocate(uint64_t bytes);
  // Ends ownership; the memory is reused once the last pin is gone.
  void Release(SlotId slot);
  void Pin(SlotId slot);
  void Unpin(SlotId slot);

  uint32_t pins(SlotId slot) const;
  MutableBytes memory(SlotId slot) const;  // whole slot, page aligned
  // The class size that `bytes` would take.
  static uint64_t ClassBytes(uint64_t bytes);
  // True if freeing slots of this class could ever satisfy Allocate (arena large enough).
  bool CanEverFit(uint64_t bytes) const;

  MutableBytes arena() const;
  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;    // slots that are owned or pinned, by class size
  uint64_t pinned_slots() const;  // slots with at least one pin
  uint64_t free_slabs() const;

 private:
  PagePool();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_PAGE_POOL_H_
