// GhostKeys: which keys were evicted not long ago. A fixed table of marks in buckets of four, the
// oldest of a bucket giving way, so it is bounded by construction and never rehashes. A hint: two
// keys of one mark are taken for each other, and a crowded bucket forgets early. One thread (the
// shard); memory is touched as it fills.
#ifndef CRUMB_CACHESVC_CORE_GHOST_KEYS_H_
#define CRUMB_CACHESVC_CORE_GHOST_KEYS_H_

#include <cstdint>
#include <span>

#include "cachesvc/base/status.h"
#include "gpu/pool/arena.h"

namespace crumb::core {

class GhostKeys {
 public:
  GhostKeys() = default;
  static absl::StatusOr<GhostKeys> Create(uint32_t keys_max);

  void Add(uint64_t key);
  // Whether the key is among the last `window` that were added; it is forgotten by that.
  bool Take(uint64_t key, uint32_t window);

 private:
  static constexpr uint32_t kWays = 4;
  struct Cell {
    uint32_t mark;  // 0 = empty
    uint32_t tick;
  };
  std::span<Cell> BucketOf(uint64_t key) const;

  Arena memory_;
  std::span<Cell> cells_;
  uint32_t bucket_mask_ = 0;
  uint32_t tick_ = 0;
};

}  // namespace crumb::core

#endif  // CRUMB_CACHESVC_CORE_GHOST_KEYS_H_
