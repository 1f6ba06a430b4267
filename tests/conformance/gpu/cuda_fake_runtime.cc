// As much of the CUDA runtime as CudaQueue calls, on threads: one per stream, in order. Its tests
// then run where no GPU is, in place of the real runtime. Memory is ordinary memory; a trap loses
// the device.
#include "tests/conformance/gpu/cuda_fake_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device/cuda_status.h"
#include "tests/conformance/gpu/cuda_trap.h"

namespace {

constexpr size_t kMemoryMax = size_t{1} << 40;  // what this device says it has
std::atomic<cudaError_t> lost{cudaSuccess};
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// One thing on a stream. Plain, in a ring made with the stream: nothing is allocated while work is
// submitted, so that the tests can count what the queue itself allocates.
struct Step {
  void (*run)(const Step& step) = nullptr;
  void* dst = nullptr;
  const void* src = nullptr;
  size_t bytes = 0;
  uint64_t value = 0;
  cudaHostFn_t call = nullptr;
};

constexpr uint64_t kStepsMax = 8192;

}  // namespace

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Step> ring = std::vector<Step>(kStepsMax);
  uint64_t added = 0, finished = 0;
  bool ended = false;
  int priority = 0;
  std::thread thread{[this] { Run(); }};

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ended || finished < added; });
      if (finished == added) return;
      const Step step = ring[finished % kStepsMax];
      lock.unlock();
      if (lost == cudaSuccess) step.run(step);
      lock.lock();
      ++finished;
      changed.notify_all();
    }
  }
  cudaError_t Add(const Step& step) {
    if (lost != cudaSuccess) return Answer(lost);
    const std::lock_guard<std::mutex> lock(mutex);
    if (added - finished == kStepsMax) return Answer(cudaErrorLaunchOutOfResources);
    ring[added++ % kStepsMax] = step;
    changed.notify_all();
    return cudaSuccess;
  }
};

namespace {

// A ticket that is copied arrives whole, as an aligned word does over PCIe.
void Copy(const Step& step) {
  if (step.bytes != sizeof(uint64_t)) {
    std::memcpy(step.dst, step.src, step.bytes);
    return;
  }
  uint64_t value = 0;
  std::memcpy(&value, step.src, sizeof(value));
  if (reinterpret_cast<uintptr_t>(step.dst) % sizeof(value) != 0) {
    std::memcpy(step.dst, &value, sizeof(value));
  } else {
    std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(step.dst)).store(value);
  }
}

CUresult WriteValue(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned int) {
  return static_cast<CUresult>(stream->Add(
      {.run =
           [](const Step& step) {
             std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(step.dst)).store(step.value);
           },
       .dst = reinterpret_cast<void*>(word),
       .value = value}));
}

// The last copy first: their order is nobody's business.
CUresult CopyBatch(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                   CUmemcpyAttributes* attributes, size_t* firsts, size_t kinds, CUstream stream) {
  if (kinds != 1 || firsts[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = count; i-- > 0;) {
    if (sizes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    const cudaError_t error =
        cudaMemcpyAsync(reinterpret_cast<void*>(dsts[i]), reinterpret_cast<void*>(srcs[i]),
                        sizes[i], cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return static_cast<CUresult>(error);
  }
  return CUDA_SUCCESS;
}

std::atomic<int> device_count_error = 0;
std::atomic<int> device_count = 1;

// Filled before the threads of a test start.
std::vector<std::pair<const char*, void*>>& DriverCalls() {
  static std::vector<std::pair<const char*, void*>> calls = {
      {"cuStreamWriteValue64", reinterpret_cast<void*>(WriteValue)},
      {"cuMemcpyBatchAsync", reinterpret_cast<void*>(CopyBatch)}};
  return calls;
}

}  // namespace

namespace crumb::fake_cuda {
void SetDeviceCount(int count) { device_count = count; }
void SetDeviceCountError(int error) { device_count_error = error; }
void AddDriverCall(const char* name, void* function) { DriverCalls().emplace_back(name, function); }
int AddToStream(void* stream, void (*run)(void* arg), void* arg) {
  return static_cast<CUstream_st*>(stream)->Add(
      {.run = [](const Step& step) { step.call(step.dst); }, .dst = arg, .call = run});
}
}  // namespace crumb::fake_cuda

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const int error = device_count_error;
  *count = error == 0 ? device_count.load() : 0;
  return static_cast<cudaError_t>(error);
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, lost.load()); }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (bytes > kMemoryMax) return Answer(cudaErrorMemoryAllocation);
  // As aligned as pages are: CUDA's own is more.
  return posix_memalign(memory, 4096, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaHostGetDevicePointer(void** there, void* memory, unsigned int) {
  *there = memory;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int priority) {
  *stream = new CUstream_st;
  (*stream)->priority = priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (lost != cudaSuccess) return Answer(lost);
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->finished == stream->added ? cudaSuccess : Answer(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->changed.wait(lock, [stream] { return stream->finished == stream->added; });
  return Answer(lost);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    stream->ended = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (bytes > kMemoryMax) return Answer(cudaErrorInvalidValue);
  return stream->Add({.run = Copy, .dst = dst, .src = src, .bytes = bytes});
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return stream->Add({.run =
                          [](const Step& step) {
                            std::memset(step.dst, static_cast<int>(step.value), step.bytes);
                          },
                      .dst = memory,
                      .bytes = bytes,
                      .value = static_cast<uint64_t>(value)});
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t run, void* arg) {
  return stream->Add(
      {.run = [](const Step& step) { step.call(step.dst); }, .dst = arg, .call = run});
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *found = nullptr;
  for (const auto& [known, function] : DriverCalls()) {
    if (std::strcmp(name, known) == 0) *found = function;
  }
  *result = *found == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"

namespace crumb {

absl::Status LaunchTrap(void*, StreamHandle stream) noexcept {
  return CudaStatus(stream->Add({.run = [](const Step&) { lost = cudaErrorIllegalAddress; }}),
                    "trap", 0);
}

}  // namespace crumb
