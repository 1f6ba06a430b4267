// A decorator that makes a block device misbehave by plan: errors, delays, lost, torn and
// misdirected writes, flipped bits. For tests and the simulator. One thread.
#ifndef CRUMB_STORAGE_DEVICE_FAULT_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_FAULT_DEVICE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "storage/device/block_device.h"

namespace crumb {

struct Fault {
  int error = 0;             // completes with this errno (EIO, ENOSPC); nothing is transferred
  uint32_t delay_polls = 0;  // reported so many Polls later; so completions change their order
  bool lose_write = false;   // reported as done, never written
  uint32_t torn_bytes = 0xffffffff;  // a write: only so many (rounded down to a block) are written
  int64_t misdirect_bytes = 0;       // a write lands that far away (ignored if out of range)
  int64_t flip_bit = -1;             // a read: this bit of what was read is inverted
};

// Called once per request, in order; `index` counts from 0.
using FaultPlan = std::function<Fault(const IoRequest& request, uint64_t index)>;

class FaultDevice final : public BlockDevice {
 public:
  // `inner` outlives this.
  FaultDevice(BlockDevice* inner, FaultPlan plan);

  uint64_t size_bytes() const override { return inner_->size_bytes(); }
  uint32_t alignment() const override { return inner_->alignment(); }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override {
    return inner_->RegisterBuffers(slices);
  }
  bool Queue(const IoRequest& request) override;
  void Submit() override { inner_->Submit(); }
  size_t Poll(absl::Span<IoCompletion> completions) override;
  size_t in_flight() const override;
  // -1 while something is delayed: only further Polls bring it.
  int wake_fd() const override { return held_ > 0 ? -1 : inner_->wake_fd(); }
  absl::Status Resize(uint64_t bytes) override { return inner_->Resize(bytes); }

  void SetPlan(FaultPlan plan) { plan_ = std::move(plan); }
  // After the inner device crashed: what was in flight is forgotten.
  void Forget();
  uint64_t faults() const { return faults_; }

 private:
  struct Slot {
    IoRequest request;
    Fault fault;
    bool used = false, finished = false;
    int error = 0;
    uint32_t polls_left = 0;
  };

  bool QueueInner(Slot& slot, uint32_t index);

  BlockDevice* inner_;
  FaultPlan plan_;
  std::vector<Slot> slots_;
  uint64_t requests_ = 0, faults_ = 0;
  uint32_t held_ = 0;  // slots that are used but not in the inner device
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_FAULT_DEVICE_H_
