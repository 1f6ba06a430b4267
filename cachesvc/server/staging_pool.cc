// First fit over 4 KiB units. Any thread.
#include "cachesvc/server/staging_pool.h"

#include <sys/mman.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {

StagingBuffer::~StagingBuffer() {
  if (pool_ != nullptr) pool_->Release(offset_, bytes_);
}

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), offset_(other.offset_), bytes_(other.bytes_) {}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->Release(offset_, bytes_);
    pool_ = std::exchange(other.pool_, nullptr);
    offset_ = other.offset_;
    bytes_ = other.bytes_;
  }
  return *this;
}

MutableBytes StagingBuffer::memory() const { return pool_->arena().subspan(offset_, bytes_); }

StagingPool::StagingPool(Arena arena)
    : arena_(std::move(arena)), used_(arena_.bytes().size() / kUnitBytes) {}

StagingPool::~StagingPool() { CRUMB_CHECK(used_units_ == 0); }

absl::StatusOr<std::unique_ptr<StagingPool>> StagingPool::Create(uint64_t bytes) {
  CRUMB_ASSIGN(Arena arena, Arena::Map(SlotBytes(bytes), HugePages::kNo));
  return std::unique_ptr<StagingPool>(new StagingPool(std::move(arena)));
}

uint64_t StagingPool::SlotBytes(uint64_t bytes) {
  return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

bool StagingPool::Free(size_t first, size_t count) const {
  for (size_t i = first; i < first + count; ++i) {
    if (used_[i]) return false;
  }
  return true;
}

StagingBuffer StagingPool::Allocate(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t slot_bytes = bytes <= capacity_bytes() ? SlotBytes(bytes) : 0;
  const size_t units = slot_bytes / kUnitBytes;
  for (size_t first = 0; units != 0 && units <= used_.size() - first; first += units) {
    if (!Free(first, units)) continue;
    for (size_t i = first; i < first + units; ++i) used_[i] = true;
    used_units_ += units;
    return {this, first * kUnitBytes, slot_bytes};
  }
  ++refused_;
  return {};
}

void StagingPool::Release(uint64_t offset, uint64_t bytes) {
  // Before the units are free again: afterwards the memory may be another's.
  const MutableBytes memory = arena().subspan(offset, bytes);
  madvise(memory.data(), memory.size(), MADV_DONTNEED);
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t first = offset / kUnitBytes;
  for (size_t i = first; i < first + bytes / kUnitBytes; ++i) used_[i] = false;
  used_units_ -= bytes / kUnitBytes;
}

uint64_t StagingPool::used_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_units_ * kUnitBytes;
}

uint64_t StagingPool::refused() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refused_;
}

}  // namespace crumb
