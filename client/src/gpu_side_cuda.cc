// The CUDA half, over gpu/device: nothing here names a type of CUDA's.
#include <utility>

#include "client/src/gpu_side.h"
#include "gpu/device/cuda_share.h"

namespace crumb::client {
namespace {

constexpr int kDevicesMax = 64;  // of one process

// Which device of this process that is. The memory was named a moment ago, so it is there.
absl::StatusOr<int> DeviceOf(const GpuUuid& uuid) {
  for (int device = 0; device < kDevicesMax; ++device) {
    CRUMB_ASSIGN(const GpuUuid own, UuidOfDevice(device));
    if (own == uuid) return device;
  }
  return absl::NotFoundError("GPU memory: its GPU is not among the first 64 of this process");
}

class CudaMark final : public GpuMark {
 public:
  explicit CudaMark(GpuEvent event) : event_(std::move(event)) {}
  const GpuHandle& handle() const override { return event_.handle(); }
  absl::Status Record(void* stream) override {
    return event_.Record(static_cast<StreamHandle>(stream));
  }
  absl::Status Wait(void* stream) override {
    return event_.Wait(static_cast<StreamHandle>(stream));
  }

 private:
  GpuEvent event_;
};

class CudaSide final : public GpuSide {
 public:
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    return ShareGpuMemory(address, bytes);
  }
  absl::StatusOr<std::unique_ptr<GpuMark>> MakeMark(const GpuUuid& uuid) override {
    CRUMB_ASSIGN(const int device, DeviceOf(uuid));
    CRUMB_ASSIGN(GpuEvent event, GpuEvent::Create(device));
    return std::make_unique<CudaMark>(std::move(event));
  }
};

}  // namespace

std::unique_ptr<GpuSide> MakeGpuSide() { return std::make_unique<CudaSide>(); }

}  // namespace crumb::client
