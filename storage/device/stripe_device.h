// A decorator that spreads one device over several (RAID 0): unit i lies on member i modulo their
// number. A request that crosses units is split; it completes once, after its last piece, with the
// first error. No allocation after construction. One thread at a time owns it.
#ifndef CRUMB_STORAGE_DEVICE_STRIPE_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_STRIPE_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "storage/device/block_device.h"
#include "storage/device/device_fd.h"
#include "storage/device/index_queue.h"

namespace crumb {

struct StripeOptions {
  uint32_t unit_bytes = 0;  // power of two, a multiple of each member's alignment
  uint64_t base = 0;        // where the data begin in each member
  uint32_t depth = 256;
};

class StripeDevice final : public BlockDevice {
 public:
  // REQUIRES: at least one member, each with room for a unit behind `base`.
  StripeDevice(const StripeOptions& options, std::vector<std::unique_ptr<BlockDevice>> members);

  uint64_t size_bytes() const override { return bytes_.load(std::memory_order_relaxed); }
  uint32_t alignment() const override { return alignment_; }
  // All members are asked; the first error comes back.
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override;
  bool Queue(const IoRequest& request) override;
  void Submit() override;
  size_t Poll(absl::Span<IoCompletion> completions) override;
  size_t in_flight() const override { return used_; }
  int wake_fd() const override;
  // Of all members, in whole units.
  absl::Status Resize(uint64_t bytes) override;

  // Whole units that fit behind `base` in the smallest of `members`, times their number.
  static uint64_t DataBytes(uint64_t smallest_bytes, const StripeOptions& options, size_t members);

 private:
  struct Slot {
    IoRequest request;
    uint64_t issued = 0;       // bytes; kSync: members
    uint32_t outstanding = 0;  // pieces that a member holds
    int error = 0;             // the first
    bool waiting = false;      // pieces are left to issue
  };

  bool Issue(uint32_t index);
  void IssueWaiting();
  void OnPiece(const IoCompletion& completion);
  void Finish(uint32_t index) { finished_.Push(index); }

  StripeOptions options_;
  std::vector<std::unique_ptr<BlockDevice>> members_;
  std::atomic<uint64_t> bytes_ = 0;  // the only thing that another thread may write (Resize)
  uint32_t alignment_ = 0, used_ = 0;
  std::vector<Slot> slots_;
  IndexQueue free_, waiting_, finished_;
  DeviceFd wake_, all_;  // Submit's own event; that and the members' as one descriptor
  bool woken_ = false;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_STRIPE_DEVICE_H_
