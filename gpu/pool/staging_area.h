// First-fit allocator over fixed units with boundary tags: the staging area of the page pool.
// Bounded by the number of live runs, which operations in flight bound. One thread. No allocation
// after the constructor.
#ifndef CRUMB_GPU_POOL_STAGING_AREA_H_
#define CRUMB_GPU_POOL_STAGING_AREA_H_

#include <cstdint>
#include <vector>

namespace crumb {

class StagingArea {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  explicit StagingArea(uint32_t units);

  // First unit of a run of `units`, or kNone.
  uint32_t Allocate(uint32_t units);
  // REQUIRES: `first` came from Allocate and was not freed since.
  void Free(uint32_t first);
  bool IsAllocated(uint32_t first) const;
  uint32_t units_of(uint32_t first) const;

  uint32_t units() const { return static_cast<uint32_t>(tags_.size()); }
  uint32_t used() const { return used_; }

 private:
  void Tag(uint32_t first, uint32_t units, bool used);

  // At the first and the last unit of each run: its length, negative when used. Else stale.
  std::vector<int32_t> tags_;
  std::vector<bool> starts_;  // true at the first unit of a used run
  uint32_t used_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_STAGING_AREA_H_
