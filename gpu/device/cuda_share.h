// Device memory and events of one process in another of the same host, by CUDA IPC. The worker
// calls ShareGpuMemory and GpuEvent::Create, the daemon GpuImports and GpuEvent::Open. All of it
// may wait for a device: start-up and registration only, never the shard's turn. Knows no CUDA
// type.
//
// A mapping outlives its exporter: when the worker dies or frees the memory, reads and writes
// through it still hit memory that belongs to nobody else until the mapping is closed (measured on
// an H200; it is not promised by CUDA). What is read may then be anything: nothing is decided on it
// unchecked.
#ifndef CRUMB_GPU_DEVICE_CUDA_SHARE_H_
#define CRUMB_GPU_DEVICE_CUDA_SHARE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "gpu/device/gpu_share.h"
#include "gpu/device/stream_queue.h"

namespace crumb {

// How to offer [address, + bytes). INVALID_ARGUMENT: not one allocation of device memory.
// FAILED_PRECONDITION: memory that no other process can map (CUDA's pools, virtual memory such as
// PyTorch's expandable segments); the error names the remedy.
absl::StatusOr<GpuShare> ShareGpuMemory(const void* address, uint64_t bytes);

// The id of a device of this process, by which another one finds it.
absl::StatusOr<GpuUuid> UuidOfDevice(int device);
// Of the device that memory of this process lies on, also where it cannot be shared.
absl::StatusOr<GpuUuid> UuidOfMemory(const void* address);

// Allocations of other processes that this one has mapped, each once however many ranges of it are
// used. One thread, or any under the owner's lock.
class GpuImports {
 public:
  struct Range {
    std::byte* data = nullptr;  // a device address of this process
    uint64_t bytes = 0;
    int device = -1;
    uint64_t import = 0;  // for Release
  };

  explicit GpuImports(uint32_t most) : most_(most) {}
  ~GpuImports();
  GpuImports(const GpuImports&) = delete;
  GpuImports& operator=(const GpuImports&) = delete;

  // NOT_FOUND: that GPU is not visible here. INVALID_ARGUMENT: the allocation is shorter than said.
  // FAILED_PRECONDITION: CUDA will not map it (another container, an exporter that is gone).
  // RESOURCE_EXHAUSTED: `most` allocations are mapped.
  absl::StatusOr<Range> Map(const GpuShare& share);
  // The last range of an allocation closes it; nothing on a stream may still use it.
  void Release(const Range& range);
  size_t mapped() const { return imports_.size(); }  // allocations

 private:
  struct Import {
    GpuHandle handle = {};
    std::byte* base = nullptr;
    uint64_t bytes = 0;  // of the allocation, as the driver says
    int device = -1;
    uint32_t ranges = 0;
  };
  absl::StatusOr<Import> Open(const GpuShare& share) const;

  const uint32_t most_;
  uint64_t last_ = 0;
  std::map<uint64_t, Import> imports_;
};

// An event that streams of two processes wait for and record. Moves with its owner; any thread, one
// at a time.
class GpuEvent {
 public:
  GpuEvent() = default;
  static absl::StatusOr<GpuEvent> Create(int device);
  static absl::StatusOr<GpuEvent> Open(const GpuHandle& handle, int device);

  const GpuHandle& handle() const { return handle_; }  // of one that was created
  // Neither waits: they put it on the stream.
  absl::Status Record(StreamHandle stream) const;
  absl::Status Wait(StreamHandle stream) const;

 private:
  struct Destroy {
    void operator()(void* event) const;
  };
  std::unique_ptr<void, Destroy> event_;
  GpuHandle handle_ = {};
  int device_ = -1;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_SHARE_H_
