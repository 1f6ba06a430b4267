// A bounded ring for many producers and many consumers: D. Vyukov's bounded MPMC queue, as
// described in his public write-up, in our own words. Each cell carries a sequence number that says
// whose turn it is; producers and consumers claim positions by compare-and-swap. No allocation
// after construction; never blocks. The only lock-free code here besides mailbox.cc.
//
// Memory order. The value in a cell is plain memory. It is written only by the thread that claimed
// the position for writing, published by the store to `sequence` (position + 1), and read only by
// the thread that claimed the position for reading after an acquire load of that sequence: the
// store happens before the read. The way back is the same: the consumer's release store of
// (position + capacity) happens before the next producer's acquire load. The position counters
// only hand out tickets, so relaxed is enough for them: exclusion comes from the CAS's atomicity.
// The publishing store and the loads of Pop and MaybeReady are seq_cst, so that a sleeping flag
// outside the ring can be paired with them without a fence (mailbox.cc, worker_pool.cc).
#ifndef CRUMB_CACHESVC_BASE_MPMC_RING_H_
#define CRUMB_CACHESVC_BASE_MPMC_RING_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "cachesvc/base/check.h"

namespace crumb {

template <typename T>
class MpmcRing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // `capacity` >= 1 is rounded up to a power of two, at least 2.
  explicit MpmcRing(size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity) - 1),
        cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    CRUMB_CHECK(capacity >= 1 && capacity <= (size_t{1} << 24));
    for (size_t i = 0; i <= mask_; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  size_t capacity() const { return mask_ + 1; }

  // Any thread. False when the next cell is still in use.
  bool Push(const T& value) {
    size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      const size_t sequence = cell.sequence.load(std::memory_order_acquire);
      const auto distance = static_cast<ptrdiff_t>(sequence - position);
      if (distance < 0) return false;  // one lap behind: full
      if (distance > 0) {
        position = tail_.load(std::memory_order_relaxed);  // somebody else took it
      } else if (tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        cell.value = value;
        cell.sequence.store(position + 1, std::memory_order_seq_cst);
        return true;
      }
    }
  }

  // Any thread. False when nothing is published at the head.
  bool Pop(T* value) {
    size_t position = head_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & mask_];
      const size_t sequence = cell.sequence.load(std::memory_order_seq_cst);
      const auto distance = static_cast<ptrdiff_t>(sequence - (position + 1));
      if (distance < 0) return false;
      if (distance > 0) {
        position = head_.load(std::memory_order_relaxed);
      } else if (head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        *value = cell.value;
        cell.sequence.store(position + mask_ + 1, std::memory_order_release);
        return true;
      }
    }
  }

  // True if a Pop now would find something. REQUIRES: called by the only consumer.
  bool MaybeReady() const {
    const size_t position = head_.load(std::memory_order_relaxed);
    return cells_[position & mask_].sequence.load(std::memory_order_seq_cst) == position + 1;
  }

 private:
  struct Cell {
    std::atomic<size_t> sequence{0};
    T value{};
  };

  const size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) std::atomic<size_t> head_{0};
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_MPMC_RING_H_
