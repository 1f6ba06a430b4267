// GPUs that are memory of this process: what the server is tested with where there is none. Lent
// memory is named by its address and must have been lent by Lend. Counts what is held; can be lost,
// and refuse to register memory. For processes: host_gpus.cc. Any thread.
#ifndef CRUMB_TESTS_SUPPORT_FAKE_GPUS_H_
#define CRUMB_TESTS_SUPPORT_FAKE_GPUS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cachesvc/server/gpus.h"
#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "gpu/pool/arena.h"

namespace crumb::testing {

// Outlives the GPUs, so that a test sees what they left.
struct FakeGpuState {
  std::atomic<bool> lost{false};
  std::atomic<bool> refuse_host{false};  // RegisterHost fails
  uint64_t total_bytes = 16ull << 30;
  uint64_t free_bytes = 15ull << 30;
  std::atomic<int> arenas{0}, registrations{0}, links{0}, mapped{0};
  std::atomic<int> codecs{0};  // ever made

  GpuShare Lend(MutableBytes memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    GpuShare share;
    const auto address = reinterpret_cast<uint64_t>(memory.data());
    std::memcpy(share.handle.data(), &address, sizeof(address));
    share.device.fill(7);
    share.allocation_bytes = share.bytes = memory.size();
    lent[address] = memory.size();
    return share;
  }

  std::mutex mutex;
  std::map<uint64_t, uint64_t> lent;
};

class FakeGpus final : public Gpus {
 public:
  static constexpr int kDevice = -1;  // where all memory of this process is

  explicit FakeGpus(FakeGpuState* state) : state_(state) {
    devices_.push_back({.name = "memory of this process", .memory_bytes = state->total_bytes});
  }

  const std::vector<GpuInfo>& devices() const override { return devices_; }

  absl::StatusOr<DeviceMemory> AskMemory(int) override {
    CRUMB_TRY(Alive());
    return DeviceMemory{.total_bytes = state_->total_bytes, .free_bytes = state_->free_bytes};
  }
  absl::StatusOr<GpuArea> MakeArena(const DeviceArenaOptions& options) override {
    CRUMB_TRY(Alive());
    CRUMB_ASSIGN(Arena arena, Arena::Map(options.bytes, HugePages::kNo));
    auto owner = std::make_shared<Arena>(std::move(arena));
    const MutableBytes memory = owner->bytes();
    return GpuArea{memory, Counted(&state_->arenas, std::move(owner))};
  }
  absl::StatusOr<GpuArea> RegisterHost(int, MutableBytes memory) override {
    CRUMB_TRY(Alive());
    if (state_->refuse_host) return absl::ResourceExhaustedError("locked memory: raise ulimit -l");
    return GpuArea{memory, Counted(&state_->registrations, nullptr)};
  }
  absl::StatusOr<GpuImports::Range> Map(const GpuShare& share) override {
    CRUMB_TRY(Alive());
    const std::lock_guard<std::mutex> lock(state_->mutex);
    uint64_t address = 0;
    std::memcpy(&address, share.handle.data(), sizeof(address));
    const auto found = state_->lent.find(address);
    if (found == state_->lent.end() || share.bytes > found->second) {
      return absl::FailedPreconditionError("nobody lent that");
    }
    ++state_->mapped;
    return GpuImports::Range{.data = reinterpret_cast<std::byte*>(address) + share.offset,
                             .bytes = share.bytes,
                             .device = kDevice,
                             .import = address};
  }
  void Unmap(const GpuImports::Range&) override { --state_->mapped; }

  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(const CudaLinkOptions&) override {
    CRUMB_TRY(Alive());
    CRUMB_ASSIGN(std::unique_ptr<GpuLink> link, MakeHostLink());
    ++state_->links;
    return std::shared_ptr<GpuLink>(link.release(), [state = state_](GpuLink* ended) {
      delete ended;
      --state->links;
    });
  }
  std::vector<GpuCodecMade> MakeCodecs(const GpuCodecsWish& wish) override {
    std::vector<CodecDescriptor> all = {CodecDescriptor::Default(CodecKind::kRaw, {})};
    for (const CodecDescriptor& descriptor : wish.descriptors) {
      if (descriptor.kind != CodecKind::kRaw) all.push_back(descriptor);
    }
    std::vector<GpuCodecMade> out;
    for (const CodecDescriptor& descriptor : all) {
      GpuCodecMade made{.descriptor = descriptor, .codec = nullptr, .status = {}};
      auto codec = PageCodec::CreateAll(*wish.shape, {&descriptor, 1}, wish.rotations);
      EXPECT_TRUE(codec.ok()) << codec.status();
      auto host = HostGpuCodec::Make(codec->front(), *wish.shape);
      made.status = host.status();
      if (host.ok()) made.codec = *std::move(host);
      ++state_->codecs;
      out.push_back(std::move(made));
    }
    return out;
  }

 private:
  absl::Status Alive() const {
    if (!state_->lost) return absl::OkStatus();
    return absl::UnavailableError("CUDA device 0: an illegal address was accessed: start again");
  }
  static std::shared_ptr<void> Counted(std::atomic<int>* count, std::shared_ptr<void> owner) {
    ++*count;
    return {static_cast<void*>(count), [owner = std::move(owner)](void* held) mutable {
              owner.reset();
              --*static_cast<std::atomic<int>*>(held);
            }};
  }

  FakeGpuState* const state_;
  std::vector<GpuInfo> devices_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_FAKE_GPUS_H_
