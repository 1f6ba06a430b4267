// The GPUs of this host as the daemon uses them: one place for everything that asks CUDA, so that
// the rest of the server is the same program with and without it. gpus_cuda.cc asks CUDA;
// gpus_none.cc is the build without it. Knows no CUDA type. Control thread, and start-up: every
// call may wait for a device.
#ifndef CRUMB_CACHESVC_SERVER_GPUS_H_
#define CRUMB_CACHESVC_SERVER_GPUS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/cuda_codecs.h"
#include "gpu/codec/cuda_link.h"
#include "gpu/device/cuda_share.h"
#include "gpu/device/gpu_probe.h"
#include "gpu/pool/cuda_arena.h"

namespace crumb {

struct GpuArea {
  MutableBytes memory;
  std::shared_ptr<void> owner;  // nothing on a stream may use the memory after it
};

struct GpuCodecsWish {
  int device = 0;
  const PartShape* shape = nullptr;
  absl::Span<const CodecDescriptor> descriptors = {};
  std::shared_ptr<const RotationSet> rotations = nullptr;
};

class Gpus {
 public:
  virtual ~Gpus() = default;

  virtual const std::vector<GpuInfo>& devices() const = 0;  // at least one
  virtual absl::StatusOr<DeviceMemory> AskMemory(int device) = 0;
  // HBM for a PagePool, before any link is made. `bytes`: SizeHbmPool says how many.
  virtual absl::StatusOr<GpuArea> MakeArena(const DeviceArenaOptions& options) = 0;
  // Page-locks host memory, whole pages of somebody else, for every GPU: in slices of
  // kRegisterSliceBytes, as CudaLinkOptions want to know. Touches every page.
  virtual absl::StatusOr<GpuArea> RegisterHost(int device, MutableBytes memory) = 0;
  // Memory of a worker (GpuImports).
  virtual absl::StatusOr<GpuImports::Range> Map(const GpuShare& share) = 0;
  virtual void Unmap(const GpuImports::Range& range) = 0;
  // Of a device that reaches every arena, else FAILED_PRECONDITION.
  virtual absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(const CudaLinkOptions& options) = 0;
  virtual std::vector<GpuCodecMade> MakeCodecs(const GpuCodecsWish& wish) = 0;
};

bool BuiltWithCuda();
// `imports_most`: allocations of workers that are mapped at once. UNIMPLEMENTED: built without
// CUDA; UNAVAILABLE: no GPU, or no driver: the message has the remedy.
absl::StatusOr<std::unique_ptr<Gpus>> OpenGpus(uint32_t imports_most);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GPUS_H_
