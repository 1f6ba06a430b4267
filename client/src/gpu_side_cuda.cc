// The CUDA half, over gpu/device: nothing here names a type of CUDA's.
#include <utility>

#include "client/src/gpu_side.h"
#include "crumb/shared_memory.h"
#include "gpu/codec/cuda_link.h"
#include "gpu/device/cuda_scope.h"
#include "gpu/device/cuda_share.h"
#include "gpu/device/cuda_word.h"
#include "gpu/pool/cuda_registered.h"

namespace crumb::client {
namespace {

constexpr int kDevicesMax = 64;  // of one process

// Which device of this process that is. The memory was named a moment ago, so it is there.
absl::StatusOr<int> NumberOf(const GpuUuid& uuid) {
  for (int device = 0; device < kDevicesMax; ++device) {
    CRUMB_ASSIGN(const GpuUuid own, UuidOfDevice(device));
    if (own == uuid) return device;
  }
  return absl::NotFoundError("GPU memory: its GPU is not among the first 64 of this process");
}

class CudaMark final : public GpuMark {
 public:
  CudaMark(std::unique_ptr<SharedMemory> memory, GpuWord word, GpuEvent event)
      : memory_(std::move(memory)), word_(std::move(word)), event_(std::move(event)) {}
  int word_fd() const override { return memory_->range().fd; }
  absl::StatusOr<bool> Idle(void* stream) override {
    return word_.Idle(static_cast<StreamHandle>(stream));
  }
  absl::Status Record(void* stream, uint64_t value) override {
    CRUMB_TRY(word_.Set(static_cast<StreamHandle>(stream), value));
    return event_.Record(static_cast<StreamHandle>(stream));
  }
  absl::Status Wait(void* stream) override {
    return event_.Wait(static_cast<StreamHandle>(stream));
  }

 private:
  const std::unique_ptr<SharedMemory> memory_;  // first: the word lies in it
  GpuWord word_;
  GpuEvent event_;  // between streams of this process
};

class CudaWorkerGpu final : public WorkerGpu {
 public:
  explicit CudaWorkerGpu(int device) : device_(device) {}

  void Run(const std::function<void()>& work) override {
    const CudaScope current(device_);
    work();
  }
  absl::StatusOr<std::shared_ptr<void>> RegisterHost(MutableBytes memory) override {
    const CudaScope current(device_);
    CRUMB_ASSIGN(RegisteredMemory made, RegisteredMemory::Create(device_, memory));
    return std::shared_ptr<void>(std::make_shared<RegisteredMemory>(std::move(made)));
  }
  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(
      std::function<absl::Status(StreamHandle)> wait_for_worker) override {
    const CudaScope current(device_);
    CudaLinkOptions options;
    options.device = device_;
    options.wait_for_worker = std::move(wait_for_worker);
    return MakeCudaLink(options);
  }
  std::vector<GpuCodecMade> MakeCodecs(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      const std::shared_ptr<const RotationSet>& rotations) override {
    const CudaScope current(device_);
    return MakeCudaCodecs(shape, descriptors, rotations, device_);
  }

 private:
  const int device_;
};

class CudaSide final : public GpuSide {
 public:
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    return ShareGpuMemory(address, bytes);
  }
  absl::StatusOr<GpuUuid> DeviceOf(const void* address) override { return UuidOfMemory(address); }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid& uuid) override {
    CRUMB_ASSIGN(const int device, NumberOf(uuid));
    std::unique_ptr<SharedMemory> memory;
    if (const Status made = SharedMemory::Create(kGpuWordBytes, &memory); !made.ok()) {
      return absl::ResourceExhaustedError(made.message);
    }
    CRUMB_ASSIGN(GpuWord word, GpuWord::Create(device, memory->data()));
    CRUMB_ASSIGN(GpuEvent event, GpuEvent::Create(device));
    return std::make_unique<CudaMark>(std::move(memory), std::move(word), std::move(event));
  }
  absl::StatusOr<std::unique_ptr<WorkerGpu>> OpenWorkerGpu(const GpuUuid& uuid) override {
    CRUMB_ASSIGN(const int device, NumberOf(uuid));
    return std::make_unique<CudaWorkerGpu>(device);
  }
};

}  // namespace

std::unique_ptr<GpuSide> MakeGpuSide() { return std::make_unique<CudaSide>(); }

}  // namespace crumb::client
