// Memory that CUDA gave, freed with its owner. Made at start-up only: both calls below may wait for
// the whole device. Any thread, one at a time.
#ifndef CRUMB_GPU_DEVICE_CUDA_MEMORY_H_
#define CRUMB_GPU_DEVICE_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cachesvc/base/status.h"

namespace crumb {

// One cudaMalloc: memory that can be exported to other processes, unlike that of pools.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty
  // `bytes` > 0. The memory holds anything. Leaves `device` current on this thread.
  static absl::StatusOr<DeviceBuffer> Create(int device, uint64_t bytes);

  std::byte* data() const { return memory_.get(); }  // a device address
  uint64_t size() const { return memory_ == nullptr ? 0 : size_; }
  int device() const { return memory_.get_deleter().device; }

 private:
  struct Free {
    Free() : device(-1) {}
    explicit Free(int owner) : device(owner) {}
    int device;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t size_ = 0;
};

// Page-locked host memory that every device can reach (portable and mapped), zeroed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Create(int device, uint64_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::byte* device_data() const { return device_data_; }  // the same bytes, as the GPU names them
  uint64_t size() const { return memory_ == nullptr ? 0 : size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* device_data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_MEMORY_H_
