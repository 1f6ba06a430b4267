// A worker over the CUDA runtime, and its load: a thread that keeps two kernels on a stream.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/device/cuda_busy.h"
#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_status.h"
#include "gpu/device/gpu_probe.h"
#include "gpu/device/gpu_worker.h"

namespace crumb {
namespace {

constexpr double kKernelUs = 2000.0;  // long, as those of an engine's prefill
constexpr uint64_t kStepsFirst = 1 << 14, kStepsMax = uint64_t{1} << 34;
constexpr uint32_t kBlocksPerProcessor = 8;
constexpr int kInFlight = 2, kCalibrations = 6;

struct StreamGone {
  void operator()(CUstream_st* stream) const { (void)cudaStreamDestroy(stream); }
};
struct EventGone {
  void operator()(CUevent_st* event) const { (void)cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<CUstream_st, StreamGone>;
using Event = std::unique_ptr<CUevent_st, EventGone>;

absl::StatusOr<Stream> MakeStream(int device) {
  cudaStream_t stream = nullptr;
  CRUMB_TRY(TakenCudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream",
                            device));
  return Stream(stream);
}

absl::StatusOr<Event> MakeEvent(int device, unsigned flags) {
  cudaEvent_t event = nullptr;
  CRUMB_TRY(TakenCudaStatus(cudaEventCreateWithFlags(&event, flags), "no event", device));
  return Event(event);
}

class CudaLoad final : public GpuLoad {
 public:
  static absl::StatusOr<std::unique_ptr<CudaLoad>> Start(int device) {
    auto load = std::make_unique<CudaLoad>(device);
    CRUMB_TRY(load->Prepare());
    load->thread_ = std::thread([raw = load.get()] { raw->Run(); });
    return load;
  }
  explicit CudaLoad(int device) : device_(device) {}
  ~CudaLoad() override {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  uint64_t kernels() const override { return kernels_.load(); }
  double kernel_us() const override { return kernel_us_; }
  absl::Status status() const override {
    return CudaStatus(failed_.load(), "the load ended", device_);
  }

 private:
  absl::Status Check(cudaError_t error, const char* what) const {
    return TakenCudaStatus(error, what, device_);
  }

  absl::Status Prepare() {
    CRUMB_ASSIGN(sink_, DeviceBuffer::Create(device_, sizeof(float)));
    CRUMB_ASSIGN(stream_, MakeStream(device_));
    int processors = 0;
    CRUMB_TRY(Check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_),
                    "asking"));
    blocks_ = static_cast<uint32_t>(processors) * kBlocksPerProcessor;
    for (int i = 0; i < kInFlight; ++i) {
      CRUMB_ASSIGN(Event event, MakeEvent(device_, cudaEventBlockingSync | cudaEventDisableTiming));
      ended_.push_back(std::move(event));
    }
    return Calibrate();
  }

  // Steps of a kernel that takes kKernelUs alone.
  absl::Status Calibrate() {
    CRUMB_ASSIGN(const Event start, MakeEvent(device_, cudaEventDefault));
    CRUMB_ASSIGN(const Event end, MakeEvent(device_, cudaEventDefault));
    for (int round = 0; round < kCalibrations; ++round) {
      CRUMB_TRY(Check(cudaEventRecord(start.get(), stream_.get()), "timing"));
      CRUMB_TRY(Launch());
      CRUMB_TRY(Check(cudaEventRecord(end.get(), stream_.get()), "timing"));
      CRUMB_TRY(Check(cudaEventSynchronize(end.get()), "a load"));
      float ms = 0;
      CRUMB_TRY(Check(cudaEventElapsedTime(&ms, start.get(), end.get()), "timing"));
      kernel_us_ = std::max(1e3 * static_cast<double>(ms), 1.0);
      if (round + 1 == kCalibrations) break;
      const double wanted = static_cast<double>(steps_) * kKernelUs / kernel_us_;
      steps_ = static_cast<uint64_t>(
          std::clamp(wanted, static_cast<double>(kStepsFirst), static_cast<double>(kStepsMax)));
    }
    return absl::OkStatus();
  }

  absl::Status Launch() const {
    return LaunchBusy(blocks_, steps_, reinterpret_cast<float*>(sink_.data()), stream_.get());
  }

  cudaError_t Turn(uint64_t turn) {
    const cudaEvent_t event = ended_[turn % kInFlight].get();
    if (turn >= kInFlight) {
      if (const cudaError_t error = cudaEventSynchronize(event); error != cudaSuccess) return error;
      kernels_.fetch_add(1);
    }
    if (!Launch().ok()) return cudaErrorLaunchFailure;
    return cudaEventRecord(event, stream_.get());
  }

  void Run() {
    cudaError_t error = cudaSetDevice(device_);
    for (uint64_t turn = 0; error == cudaSuccess && !stop_.load(); ++turn) error = Turn(turn);
    (void)cudaStreamSynchronize(stream_.get());
    failed_.store(error);
  }

  const int device_;
  DeviceBuffer sink_;
  Stream stream_;
  std::vector<Event> ended_;  // one for each kernel in flight
  uint32_t blocks_ = 0;
  uint64_t steps_ = kStepsFirst;
  double kernel_us_ = 0;
  std::atomic<uint64_t> kernels_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> failed_{0};  // a cudaError_t
  std::thread thread_;
};

class CudaWorker final : public GpuWorker {
 public:
  CudaWorker(int device, std::string name, Stream stream)
      : device_(device), name_(std::move(name)), stream_(std::move(stream)) {}

  std::string name() const override { return name_; }
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    CRUMB_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Create(device_, bytes));
    memory_.push_back(std::move(buffer));
    return memory_.back().data();
  }
  absl::Status CopyIn(void* to, const void* from_host, uint64_t bytes) override {
    return Done(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, stream_.get()));
  }
  absl::Status CopyOut(void* to_host, const void* from, uint64_t bytes) override {
    return Done(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, stream_.get()));
  }
  absl::Status Fill(void* memory, uint8_t value, uint64_t bytes) override {
    return Done(cudaMemsetAsync(memory, value, bytes, stream_.get()));
  }
  void* stream() const override { return stream_.get(); }
  absl::StatusOr<std::unique_ptr<GpuLoad>> StartLoad() override {
    CRUMB_TRY(TakenCudaStatus(cudaSetDevice(device_), "a load", device_));
    CRUMB_ASSIGN(std::unique_ptr<GpuLoad> load, CudaLoad::Start(device_));
    return load;
  }

 private:
  absl::Status Done(cudaError_t error) const {
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_.get());
    return TakenCudaStatus(error, "copying", device_);
  }

  const int device_;
  const std::string name_;
  std::vector<DeviceBuffer> memory_;
  Stream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuWorker>> OpenGpuWorker(int device) {
  const GpuProbe probe = ProbeGpus();
  if (probe.devices.empty()) return absl::UnavailableError(probe.note);
  CRUMB_TRY(CheckCudaDevice(device));
  CRUMB_TRY(TakenCudaStatus(cudaSetDevice(device), "cannot be used", device));
  CRUMB_ASSIGN(Stream stream, MakeStream(device));
  const auto index = static_cast<size_t>(device);
  std::string name = index < probe.devices.size() ? probe.devices[index].name : "GPU";
  return std::make_unique<CudaWorker>(device, std::move(name), std::move(stream));
}

}  // namespace crumb
