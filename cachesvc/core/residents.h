// Residents: what only a page in memory has, beside its entry in the index and named by a number of
// its own, so that pages on disk alone pay for none of it. The numbers are dense: the policies and
// the queues of fresh pages keep theirs by the same. One thread (the shard); nothing is allocated
// after Create, and memory is touched only as it fills.
#ifndef CRUMB_CACHESVC_CORE_RESIDENTS_H_
#define CRUMB_CACHESVC_CORE_RESIDENTS_H_

#include <cstdint>
#include <span>

#include "cachesvc/base/check.h"
#include "cachesvc/base/status.h"
#include "cachesvc/core/index.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

struct Resident {
  EntryId entry = kNoId;        // whose page it is; of one that is free: the next free one
  SlotId slot;                  // never invalid
  uint32_t append = kNoId;      // AppendOp that writes it
  bool touched : 1 = false;     // since its append for eviction began
  bool got : 1 = false;         // since it came, or it came back soon
  bool prefetched : 1 = false;  // raised by a prefetch, and not yet got
  bool fresh : 1 = false;       // raw because it is recent: to be demoted, in a slab of its kind
  bool gpu_got : 1 = false;     // from DRAM into a worker's GPU memory, since it came to DRAM
  bool gpu_put : 1 = false;     // out of a worker's GPU memory

  bool in_hbm() const { return IsHbm(slot); }
};

class Residents {
 public:
  static absl::StatusOr<Residents> Create(uint32_t pages_max) {
    Residents made;
    CRUMB_ASSIGN(made.memory_, Arena::Map(uint64_t{pages_max} * sizeof(Resident), HugePages::kNo));
    made.pages_ = {reinterpret_cast<Resident*>(made.memory_.bytes().data()), pages_max};
    return made;
  }

  // REQUIRES: fewer than pages_max are taken.
  PageId Take(EntryId entry, SlotId slot) {
    const PageId id = free_ == kNoId ? used_++ : free_;
    CRUMB_CHECK(id < pages_.size());
    ++size_;
    if (id == free_) free_ = pages_[id].entry;
    pages_[id] = Resident{};
    pages_[id].entry = entry;
    pages_[id].slot = slot;
    return id;
  }
  void Give(PageId id) {
    pages_[id].entry = free_;
    free_ = id;
    --size_;
  }
  Resident& operator[](PageId id) { return pages_[id]; }
  const Resident& operator[](PageId id) const { return pages_[id]; }
  uint32_t size() const { return size_; }
  uint64_t bytes_used() const { return uint64_t{used_} * sizeof(Resident); }

 private:
  Arena memory_;
  std::span<Resident> pages_;
  uint32_t size_ = 0;
  uint32_t used_ = 0;  // high-water mark
  PageId free_ = kNoId;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_RESIDENTS_H_
