// Arena: one anonymous mapping, released with the object. Never grows, never moves.
#ifndef CRUMB_GPU_POOL_ARENA_H_
#define CRUMB_GPU_POOL_ARENA_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

// kTransparent: what the kernel makes of its own accord; kWanted: of those that are reserved, too.
enum class HugePages : uint8_t { kNo, kWanted, kTransparent };

class Arena {
 public:
  // RESOURCE_EXHAUSTED if the kernel refuses. Pages are zero and cost nothing until touched.
  static absl::StatusOr<Arena> Map(uint64_t bytes, HugePages hugepages);
  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  MutableBytes bytes() const { return {data_, mapped_bytes_}; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t mapped_bytes_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_POOL_ARENA_H_
