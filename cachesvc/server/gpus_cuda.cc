// The pieces of gpu/ behind one interface. Control thread.
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/server/gpus.h"
#include "gpu/pool/cuda_registered.h"

namespace crumb {
namespace {

class CudaGpus final : public Gpus {
 public:
  CudaGpus(std::vector<GpuInfo> devices, uint32_t imports_most)
      : devices_(std::move(devices)), imports_(imports_most) {}

  const std::vector<GpuInfo>& devices() const override { return devices_; }

  absl::StatusOr<DeviceMemory> AskMemory(int device) override { return AskDeviceMemory(device); }

  absl::StatusOr<GpuArea> MakeArena(const DeviceArenaOptions& options) override {
    CRUMB_ASSIGN(DeviceArena made, DeviceArena::Create(options));
    auto arena = std::make_shared<DeviceArena>(std::move(made));
    arenas_.push_back(arena);
    return GpuArea{arena->memory(), arena};
  }

  absl::StatusOr<GpuArea> RegisterHost(int device, MutableBytes memory) override {
    CRUMB_ASSIGN(RegisteredMemory made, RegisteredMemory::Create(device, memory));
    auto registered = std::make_shared<RegisteredMemory>(std::move(made));
    return GpuArea{registered->memory(), registered};
  }

  absl::StatusOr<GpuImports::Range> Map(const GpuShare& share) override {
    return imports_.Map(share);
  }
  void Unmap(const GpuImports::Range& range) override { imports_.Release(range); }

  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(const CudaLinkOptions& options) override {
    for (const std::weak_ptr<DeviceArena>& one : arenas_) {
      if (const auto arena = one.lock()) CRUMB_TRY(arena->LetReach(options.device));
    }
    return MakeCudaLink(options);
  }

  std::vector<GpuCodecMade> MakeCodecs(const GpuCodecsWish& wish) override {
    CRUMB_CHECK(wish.shape != nullptr);
    return MakeCudaCodecs(*wish.shape, wish.descriptors, wish.rotations, wish.device);
  }

 private:
  const std::vector<GpuInfo> devices_;
  GpuImports imports_;
  std::vector<std::weak_ptr<DeviceArena>> arenas_;
};

}  // namespace

bool BuiltWithCuda() { return true; }

absl::StatusOr<std::unique_ptr<Gpus>> OpenGpus(uint32_t imports_most) {
  GpuProbe probe = ProbeGpus();
  if (probe.devices.empty()) return absl::UnavailableError(probe.note);
  return std::make_unique<CudaGpus>(std::move(probe.devices), imports_most);
}

}  // namespace crumb
