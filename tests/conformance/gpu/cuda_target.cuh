// A GPU as the target of the stream queue's tests.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TARGET_CUH_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TARGET_CUH_

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <utility>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_queue.h"
#include "gpu/device/cuda_status.h"
#include "tests/conformance/gpu/stream_queue_suite.h"

namespace crumb {

class CudaTarget final : public StreamTarget {
 public:
  explicit CudaTarget(CudaQueueOptions options) : options_(options) {}

  absl::StatusOr<std::unique_ptr<StreamQueue>> Make(uint32_t work_max) override {
    options_.work_max = work_max;
    return CudaQueue::Create(options_);
  }
  uint8_t* DeviceMemory(size_t bytes) override {
    device_.push_back(Must(DeviceBuffer::Create(options_.device, bytes)));
    uint8_t* const memory = reinterpret_cast<uint8_t*>(device_.back().data());
    // The legacy stream and a wait: queues' streams do not order themselves with it.
    EXPECT_EQ(cudaMemset(memory, 0, bytes), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return memory;
  }
  uint8_t* HostMemory(size_t bytes) override {
    host_.push_back(Must(PinnedBuffer::Create(options_.device, bytes)));
    return reinterpret_cast<uint8_t*>(host_.back().data());
  }
  absl::Status Fill(StreamHandle stream, absl::Span<uint8_t> memory, uint8_t value) override {
    return CudaStatus(cudaMemsetAsync(memory.data(), value, memory.size(), stream), "fill",
                      options_.device);
  }

 private:
  template <typename T>
  static T Must(absl::StatusOr<T> made) {
    if (!made.ok()) throw std::runtime_error(made.status().ToString());
    return *std::move(made);
  }
  CudaQueueOptions options_;
  std::vector<DeviceBuffer> device_;
  std::vector<PinnedBuffer> host_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TARGET_CUH_
