// A block device in RAM for tests, benchmarks and the simulator. Operations complete in order, at
// the Poll after their Submit. With track_unsynced it behaves like a disk with a volatile cache:
// Crash decides, sector by sector, what survives of the writes that no durable write or sync had
// made stable. One thread. PROMISE: the same calls give the same bytes; no clock, no chance.
#ifndef CRUMB_STORAGE_DEVICE_MEM_DEVICE_H_
#define CRUMB_STORAGE_DEVICE_MEM_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "storage/device/aligned_buffer.h"
#include "storage/device/block_device.h"

namespace crumb {

inline constexpr uint32_t kSectorBytes = 512;  // what a device writes whole or not at all

struct MemDeviceOptions {
  uint64_t bytes = 0;
  uint32_t alignment = 4096;
  uint32_t depth = 256;
  bool track_unsynced = false;  // doubles the memory
};

class MemDevice final : public BlockDevice {
 public:
  struct Write {
    uint64_t offset = 0;
    std::vector<uint8_t> data;
    bool durable = false;    // asked for
    bool completed = false;  // reported to the caller
  };
  // True: sector `sector` of this write (0 = its first) survived the crash.
  using Survives = std::function<bool(const Write& write, uint64_t sector)>;

  explicit MemDevice(const MemDeviceOptions& options);

  uint64_t size_bytes() const override { return options_.bytes; }
  uint32_t alignment() const override { return options_.alignment; }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override;
  bool Queue(const IoRequest& request) override;
  void Submit() override;
  size_t Poll(absl::Span<IoCompletion> completions) override;
  size_t in_flight() const override { return queued_.size() + submitted_.size(); }
  int wake_fd() const override { return -1; }
  // What lay beyond is gone at once and for good; what is new is zero. The caller's thread.
  absl::Status Resize(uint64_t bytes) override;

  // What reads see now. Writing to it is bit rot.
  Bytes image() const { return {image_.data(), options_.bytes}; }
  MutableBytes mutable_image() { return {image_.data(), options_.bytes}; }
  // Writes the image to a file, for `crumbctl page inspect` and bug reports.
  absl::Status Dump(const std::string& path) const;

  // REQUIRES: track_unsynced. Power loss: forgets everything in flight (no completion comes), then
  // keeps of each write that is not stable, oldest first, the sectors that `survives`.
  void Crash(const Survives& survives);
  size_t unsynced_writes() const { return unsynced_.size(); }

 private:
  struct Pending {
    IoRequest request;
    uint64_t writes_before = 0;  // kSync: how many writes were complete when it was queued
  };

  int Execute(const Pending& pending);
  void ApplyWrite(const IoRequest& request);
  void MakeStable(const Write& write);
  void SettleOverlaps(const IoRequest& request);
  void SettleBefore(uint64_t write_number);

  MemDeviceOptions options_;
  AlignedBuffer image_;
  AlignedBuffer stable_;  // track_unsynced only
  std::deque<Pending> queued_, submitted_;
  std::deque<std::pair<uint64_t, Write>> unsynced_;  // by write number
  uint64_t writes_done_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_STORAGE_DEVICE_MEM_DEVICE_H_
