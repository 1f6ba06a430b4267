// A disk that can lie in every way a real one does, and the BlockDevice over it.
//
// SimDisk is the medium: it survives a crash. A plain write is visible at once and volatile until a
// sync that was queued after its completion completes. A crash keeps, for each 4 KiB block on its
// own, any one of the versions written since the last sync, or the old one: writes are lost, kept,
// torn and reordered. SimBlockDevice adds latency, reordering, errors and the moment of the crash.
#ifndef CRUMB_TESTS_SIM_SIM_DISK_H_
#define CRUMB_TESTS_SIM_SIM_DISK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "storage/device/block_device.h"
#include "tests/sim/sim_core.h"

namespace crumb::sim {

inline constexpr uint32_t kSimBlockBytes = 4096;

class SimDisk {
 public:
  using Block = std::array<uint8_t, kSimBlockBytes>;

  explicit SimDisk(uint64_t bytes);
  ~SimDisk();
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  uint64_t size_bytes() const { return bytes_; }
  // What lay beyond is gone; what is new is zero.
  void Resize(uint64_t bytes);
  // What a read sees: the newest version of each block. Offsets are multiples of a block.
  void Read(uint64_t offset, MutableBytes out) const;
  // What is there after a power cut that takes everything it can.
  void ReadStable(uint64_t offset, MutableBytes out) const;
  void Write(uint64_t offset, Bytes data);
  void WriteDurable(uint64_t offset, Bytes data);
  // All versions up to this point; a sync makes those durable.
  uint64_t version() const { return version_; }
  void SyncTo(uint64_t version);
  // Writes that were on their way are candidates like those that arrived.
  void Crash(Rng& rng);
  // Flips one bit on the medium. False: the block was never written or has volatile versions.
  bool FlipBit(uint64_t block, uint32_t bit);

  // Numbers of all blocks that hold something durable, in the order in which they first did.
  const std::vector<uint64_t>& DurableBlocks() const { return written_; }

 private:
  struct Version {
    uint64_t number;
    std::unique_ptr<Block> data;
  };
  void Keep(uint64_t block, const uint8_t* data);

  uint64_t bytes_;
  uint64_t version_ = 0;
  uint8_t* durable_ = nullptr;  // mapped; pages that nobody wrote cost nothing
  std::vector<bool> is_written_;
  std::vector<uint64_t> written_;
  std::map<uint64_t, std::vector<Version>> volatile_;
};

// Rates are per 10,000 requests of their kind.
struct SimDeviceOptions {
  uint32_t depth = 64;
  uint32_t read_errors_per_10k = 0;
  uint32_t write_errors_per_10k = 0;  // EIO, syncs too
  uint32_t no_space_per_10k = 0;      // ENOSPC
  // Of records alone, and reported as done: what a start cannot know of (a tombstone, a mark) is
  // written as it should be, because no log can notice that one is missing.
  uint32_t lost_writes_per_10k = 0;
  uint32_t torn_writes_per_10k = 0;
  uint32_t misdirected_per_10k = 0;
  uint32_t slow_factor = 1;           // times the usual latency
  uint32_t slow_seconds_per_10k = 0;  // requests that take seconds
  bool lies() const { return lost_writes_per_10k + torn_writes_per_10k + misdirected_per_10k > 0; }
};

class SimBlockDevice final : public BlockDevice {
 public:
  SimBlockDevice(SimContext* context, SimDisk* disk, const SimDeviceOptions& options);
  ~SimBlockDevice() override;

  // Requests complete as soon as they are submitted (and those in flight at once): for Open and
  // Close, which wait by polling.
  void SetInstant(bool instant);
  // The power goes out after `operations` more operations (also in the middle of Open).
  void CutPowerAfter(uint64_t operations);
  // The power is gone: what was in flight or not synced may or may not be on the medium, everything
  // completes with EIO from here on, nothing is written any more.
  void CutPower();
  // The process is gone, the power is not: what was in flight may or may not arrive, what arrived
  // stays visible, and is still only as stable as it was.
  void Kill();
  bool dead() const { return dead_; }
  // All but the depth.
  void SetErrors(const SimDeviceOptions& options) {
    const uint32_t depth = options_.depth;
    options_ = options;
    options_.depth = depth;
  }
  void StopFaults() {
    SetErrors({});
    stalled_until_us_ = 0;
    fuse_ = UINT64_MAX;
  }
  // Nothing completes until then.
  void Stall(uint64_t duration_us);
  // Where errors were injected: the pages there may be lost.
  void set_on_error(std::function<void(const IoRequest&)> on_error) {
    on_error_ = std::move(on_error);
  }
  // Before a misdirected write overwrites what is there.
  void set_on_overwrite(std::function<void(uint64_t offset, uint32_t bytes)> on_overwrite) {
    on_overwrite_ = std::move(on_overwrite);
  }

  uint64_t size_bytes() const override { return disk_->size_bytes(); }
  uint32_t alignment() const override { return kSimBlockBytes; }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override;
  bool Queue(const IoRequest& request) override;
  void Submit() override;
  size_t Poll(absl::Span<IoCompletion> completions) override;
  size_t in_flight() const override;
  int wake_fd() const override { return instant_ || dead_ ? -1 : SimContext::kNoSleepFd; }
  absl::Status Resize(uint64_t bytes) override;
  bool has_ready() const { return !ready_.empty(); }

 private:
  struct Operation {
    IoRequest request;
    uint64_t content = 0;       // hash of a write's data when it was submitted
    uint64_t sync_version = 0;  // what a sync covers
  };
  void Start(const IoRequest& request);
  void Finish(uint64_t id);
  bool Reachable(const IoRequest& request) const;
  uint64_t Delay(const IoRequest& request);
  int Perform(const Operation& operation);
  void EndEverything();
  int Refuses(const IoRequest& request);
  bool Lies(const IoRequest& request);
  bool MayOverwrite(uint64_t offset, uint32_t bytes) const;

  SimContext* const context_;
  SimDisk* const disk_;
  SimDeviceOptions options_;
  Rng rng_;
  bool instant_ = false;
  bool dead_ = false;
  bool silent_ = false;
  uint64_t fuse_ = UINT64_MAX;
  uint64_t stalled_until_us_ = 0;
  uint64_t next_id_ = 0;
  std::deque<IoRequest> queued_;
  std::map<uint64_t, Operation> started_;
  std::deque<IoCompletion> ready_;
  std::function<void(const IoRequest&)> on_error_;
  std::function<void(uint64_t, uint32_t)> on_overwrite_;
};

}  // namespace crumb::sim

#endif  // CRUMB_TESTS_SIM_SIM_DISK_H_
