// Memory for the pages of gRPC streams under way: one arena that the loopback transport reads and
// writes, cut on demand. Bounded; a buffer's memory goes back to the kernel when it is released.
// Any thread.
#ifndef CRUMB_CACHESVC_SERVER_STAGING_POOL_H_
#define CRUMB_CACHESVC_SERVER_STAGING_POOL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/pool/arena.h"

namespace crumb {

class StagingPool;

// One buffer; move-only, released with the object.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  // Only StagingPool makes valid ones.
  StagingBuffer(StagingPool* pool, uint64_t offset, uint64_t bytes)
      : pool_(pool), offset_(offset), bytes_(bytes) {}
  ~StagingBuffer();
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  bool valid() const { return pool_ != nullptr; }
  MutableBytes memory() const;
  uint64_t slot_bytes() const { return bytes_; }
  // The buffer as a slot of a region set over the whole arena with this slot size.
  uint32_t slot() const { return static_cast<uint32_t>(offset_ / bytes_); }

 private:
  StagingPool* pool_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
};

class StagingPool {
 public:
  static absl::StatusOr<std::unique_ptr<StagingPool>> Create(uint64_t bytes);
  ~StagingPool();  // REQUIRES: no buffer is left

  // A buffer that lies at a multiple of its size, which is `bytes` rounded up to 4 KiB. Not valid
  // when there is no room: refuse the call.
  StagingBuffer Allocate(uint64_t bytes);

  // Called by the buffer.
  void Release(uint64_t offset, uint64_t bytes);

  static uint64_t SlotBytes(uint64_t bytes);
  MutableBytes arena() const { return arena_.bytes().subspan(0, capacity_bytes()); }
  uint64_t capacity_bytes() const { return used_.size() * kUnitBytes; }
  uint64_t used_bytes() const;
  uint64_t refused() const;

 private:
  static constexpr uint64_t kUnitBytes = 4096;
  explicit StagingPool(Arena arena);
  bool Free(size_t first, size_t count) const;

  Arena arena_;
  mutable std::mutex mutex_;
  std::vector<bool> used_;
  uint64_t used_units_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_STAGING_POOL_H_
