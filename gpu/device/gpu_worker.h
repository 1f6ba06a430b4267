// GpuWorker: what an inference worker has of a GPU, for tools and tests that stand in for one:
// memory that can be lent, copies, a stream, and a load of kernels that counts its own progress.
// Calls wait for the device: never in a daemon. cuda_bench_worker.cc asks CUDA; gpu_worker_none.cc
// is the build without it. Knows no CUDA type. One thread at a time; the load has its own.
#ifndef CRUMB_GPU_DEVICE_GPU_WORKER_H_
#define CRUMB_GPU_DEVICE_GPU_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cachesvc/base/status.h"

namespace crumb {

// Kernels of a fixed amount of work, back to back on a stream of their own, until it is destroyed:
// what they lose to others is what an engine would lose.
class GpuLoad {
 public:
  virtual ~GpuLoad() = default;
  virtual uint64_t kernels() const = 0;     // that have ended; any thread
  virtual double kernel_us() const = 0;     // of one, measured alone at the start
  virtual absl::Status status() const = 0;  // why it stopped, if it did; any thread
};

class GpuWorker {
 public:
  virtual ~GpuWorker() = default;
  virtual std::string name() const = 0;
  // Host memory in a test that has no GPU; then there is no stream.
  virtual bool on_host() const { return false; }
  // One allocation that other processes can map; freed with the worker. RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::byte*> Allocate(uint64_t bytes) = 0;
  virtual absl::Status CopyIn(void* to, const void* from_host, uint64_t bytes) = 0;
  virtual absl::Status CopyOut(void* to_host, const void* from, uint64_t bytes) = 0;
  virtual absl::Status Fill(void* memory, uint8_t value, uint64_t bytes) = 0;
  // What is put and got is ordered behind; copies above have ended when they return.
  virtual void* stream() const = 0;
  virtual absl::StatusOr<std::unique_ptr<GpuLoad>> StartLoad() = 0;
};

// UNAVAILABLE: no CUDA in this build, no driver, no GPU. INVALID_ARGUMENT: no such device. The
// message names the remedy.
absl::StatusOr<std::unique_ptr<GpuWorker>> OpenGpuWorker(int device);

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_GPU_WORKER_H_
