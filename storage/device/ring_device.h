// BlockDevice over a Ring: slots, completion by user_data (slot and use count), continued short
// transfers, bounded retries, one Ring::Submit per Submit. Small requests that follow each other on
// the disk and in the queue go as one vectored operation. No allocation after construction.
// One thread at a time owns it. INVARIANT: operations in the ring <= depth, so that the completion
// queue (at least that long) cannot overflow.
#ifndef CRUMB_STORAGE_DEVICE_RING_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_RING_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "storage/device/block_device.h"
#include "storage/device/index_queue.h"
#include "storage/device/io_progress.h"
#include "storage/device/ring.h"

namespace crumb {

inline constexpr uint64_t kRegisteredSliceBytesMax = 1ull << 30;  // the kernel's limit per buffer
inline constexpr size_t kRegisteredSlicesMax = 1024;
// Turns in a row in which the ring took nothing, until what was prepared fails with EAGAIN.
inline constexpr uint32_t kSubmitRefusalsMax = 10'000;

// Of one vectored operation.
inline constexpr uint32_t kMergedRequestsMax = 32;
inline constexpr uint32_t kMergedBytesMax = 1u << 20;

struct RingDeviceOptions {
  uint64_t bytes = 0;
  uint32_t alignment = 4096;
  uint32_t depth = 256;
  // The file behind the ring, or -1. Once its last name is gone nothing written to it outlives the
  // process: durable writes and syncs then fail with ENOENT, all else goes on.
  int named_fd = -1;
  uint32_t merge_bytes_max = 64 * 1024;  // of a request that may be merged; 0: none is
};

class RingDevice final : public BlockDevice {
 public:
  RingDevice(const RingDeviceOptions& options, std::unique_ptr<Ring> ring);
  ~RingDevice() override;  // waits for what the ring has taken: it still writes to callers' memory

  uint64_t size_bytes() const override { return bytes_.load(std::memory_order_relaxed); }
  uint32_t alignment() const override { return options_.alignment; }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override;
  bool Queue(const IoRequest& request) override;
  void Submit() override;
  size_t Poll(absl::Span<IoCompletion> completions) override;
  size_t in_flight() const override { return used_; }
  int wake_fd() const override { return ring_->wake_fd(); }
  // The bound alone: whoever owns the file changes its length.
  absl::Status Resize(uint64_t bytes) override;

  uint64_t unknown_results() const { return unknown_results_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // kMerged: in the operation of another slot.
  enum class Where : uint8_t { kFree, kWaiting, kPrepared, kTaken, kMerged, kFinished };
  struct Slot {
    IoRequest request;
    IoProgress progress;
    uint32_t use = 0;  // increased at each reuse, part of user_data
    int error = 0;
    Where where = Where::kFree;
    bool alone = false;     // never merged (again): it needs an answer of its own
    uint32_t next = kNone;  // the next one in the same operation
  };

  int BufferOf(const IoRequest& request) const;
  int DurabilityError(IoOp op) const;
  bool Follows(const Slot& first, const Slot& second) const;
  uint32_t CountMergeable() const;
  bool PrepareFront();
  void Gather(uint32_t leader, uint32_t count, RingOp* op);
  void PrepareWaiting();
  void HandOver();
  void FailPrepared(int error);
  void Finish(uint32_t index, int error);
  void FinishChain(uint32_t leader, int error);
  void OnResult(const RingResult& result);
  void OnMergedResult(uint32_t leader, int64_t result);
  void Settle(uint32_t index, int64_t result);
  void Again(uint32_t index);
  size_t ReapOnce();

  RingDeviceOptions options_;
  std::atomic<uint64_t> bytes_;  // the only thing that another thread may write (Resize)
  std::unique_ptr<Ring> ring_;
  std::vector<Slot> slots_;
  std::vector<iovec> vectors_;  // kMergedRequestsMax for each slot
  IndexQueue free_, waiting_, prepared_, finished_;
  std::vector<MutableBytes> slices_;  // as registered, in order of index
  uint32_t used_ = 0, taken_ = 0, refusals_ = 0;
  uint64_t unknown_results_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_RING_DEVICE_H_
