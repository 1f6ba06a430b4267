// Times by events on a stream of its own. Burst: one launch after the GPU was idle, so that its
// clock has to rise; sustained: launches back to back. Medians of both.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/codec/cuda_bench_job.h"
#include "gpu/codec/gpu_bench.h"
#include "gpu/device/cuda_status.h"
#include "gpu/device/gpu_probe.h"

namespace crumb {
namespace {

constexpr auto kIdle = std::chrono::milliseconds(250);
constexpr int kSustainedRounds = 5;
constexpr double kRoundUs = 20'000.0;
constexpr uint32_t kLaunchesMin = 10, kLaunchesMax = 500;  // of a round; fewer than a stream takes
constexpr uint64_t kCopyBytes = 512ull << 20, kCopyBytesMin = 64ull << 20;
constexpr uint32_t kCopyLaunches = 20;

struct StreamGone {
  void operator()(CUstream_st* stream) const { (void)cudaStreamDestroy(stream); }
};
struct EventGone {
  void operator()(CUevent_st* event) const { (void)cudaEventDestroy(event); }
};

using Launch = std::function<absl::Status(StreamHandle stream)>;

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class Timer {
 public:
  static absl::StatusOr<Timer> Make(int device) {
    Timer timer;
    timer.device_ = device;
    CRUMB_TRY(timer.Check(cudaSetDevice(device), "cannot be used"));
    cudaStream_t stream = nullptr;
    CRUMB_TRY(timer.Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream"));
    timer.stream_.reset(stream);
    for (auto* event : {&timer.start_, &timer.end_}) {
      cudaEvent_t made = nullptr;
      CRUMB_TRY(timer.Check(cudaEventCreate(&made), "no event"));
      event->reset(made);
    }
    return timer;
  }

  StreamHandle stream() const { return stream_.get(); }

  // Microseconds of one of `times` launches back to back.
  absl::StatusOr<double> Once(uint32_t times, const Launch& launch) const {
    CRUMB_TRY(Check(cudaEventRecord(start_.get(), stream_.get()), "timing"));
    for (uint32_t i = 0; i < times; ++i) CRUMB_TRY(launch(stream_.get()));
    CRUMB_TRY(Check(cudaEventRecord(end_.get(), stream_.get()), "timing"));
    CRUMB_TRY(Check(cudaEventSynchronize(end_.get()), "work failed"));
    float ms = 0;
    CRUMB_TRY(Check(cudaEventElapsedTime(&ms, start_.get(), end_.get()), "timing"));
    return 1e3 * static_cast<double>(ms) / times;
  }

  absl::StatusOr<double> Burst(uint32_t runs, const Launch& launch) const {
    std::vector<double> times;
    for (uint32_t i = 0; i < runs; ++i) {
      std::this_thread::sleep_for(kIdle);
      CRUMB_ASSIGN(const double us, Once(1, launch));
      times.push_back(us);
    }
    return times.empty() ? 0.0 : Median(std::move(times));
  }

  absl::StatusOr<double> Sustained(uint32_t launches, const Launch& launch) const {
    CRUMB_ASSIGN(const double guess_us, Once(kLaunchesMin, launch));
    if (launches == 0) {
      const double wanted = kRoundUs / std::max(guess_us, 1.0);
      launches = static_cast<uint32_t>(std::clamp<double>(wanted, kLaunchesMin, kLaunchesMax));
    }
    std::vector<double> times;
    for (int round = 0; round < kSustainedRounds; ++round) {
      CRUMB_ASSIGN(const double us, Once(launches, launch));
      times.push_back(us);
    }
    return Median(std::move(times));
  }

 private:
  Timer() = default;
  absl::Status Check(cudaError_t error, const char* what) const {
    if (error != cudaSuccess) (void)cudaGetLastError();
    return CudaStatus(error, what, device_);
  }

  int device_ = 0;
  std::unique_ptr<CUstream_st, StreamGone> stream_;
  std::unique_ptr<CUevent_st, EventGone> start_, end_;
};

// The rate at which the device copies within itself; half of what is free if that is little.
absl::StatusOr<double> CopyRate(int device) {
  CRUMB_ASSIGN(const Timer timer, Timer::Make(device));
  size_t free_bytes = 0, all = 0;
  CRUMB_TRY(CudaStatus(cudaMemGetInfo(&free_bytes, &all), "asking for free memory", device));
  const uint64_t bytes = std::min<uint64_t>(kCopyBytes, free_bytes / 4);
  if (bytes < kCopyBytesMin) {
    return absl::ResourceExhaustedError(
        absl::StrCat("CUDA device ", device, ": only ", free_bytes >> 20,
                     " MiB are free, a copy is measured with twice ", kCopyBytesMin >> 20,
                     "; nvidia-smi shows who holds the rest"));
  }
  CRUMB_ASSIGN(const DeviceBuffer from, DeviceBuffer::Create(device, bytes));
  CRUMB_ASSIGN(const DeviceBuffer to, DeviceBuffer::Create(device, bytes));
  CRUMB_TRY(CudaStatus(cudaMemset(from.data(), 0x5a, bytes), "filling", device));
  CRUMB_TRY(CudaStatus(cudaDeviceSynchronize(), "filling", device));
  const Launch copy = [&](StreamHandle stream) {
    return CudaStatus(
        cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "copying",
        device);
  };
  CRUMB_ASSIGN(const double us, timer.Sustained(kCopyLaunches, copy));
  return 2.0 * static_cast<double>(bytes) / us;
}

Launch LaunchOf(const CudaBenchJob& job, GpuBenchWay way, Effort effort, uint32_t count) {
  const CudaCodec& codec = job.codec();
  const CudaPages pages = job.Pages(count);
  if (way == GpuBenchWay::kEncode) {
    return [&codec, pages, effort](StreamHandle stream) {
      return codec.Encode(pages, effort, stream);
    };
  }
  const Frame frame = way == GpuBenchWay::kDecode ? Frame::kOriginal : Frame::kRotated;
  return [&codec, pages, frame](StreamHandle stream) { return codec.Decode(pages, frame, stream); };
}

absl::StatusOr<GpuBenchRow> MeasureWay(const GpuBenchCase& wanted, const CudaBenchJob& job,
                                       const Timer& timer, GpuBenchWay way) {
  GpuBenchRow row;
  row.way = way;
  if (way == GpuBenchWay::kEncode && !job.codec().encodes()) {
    row.why_not = std::string(job.codec().encode_status().message());
    return row;
  }
  const uint32_t all = *std::max_element(wanted.pages.begin(), wanted.pages.end());
  CRUMB_TRY(job.codec().ResetReports(job.Pages(all), timer.stream()));
  for (const uint32_t count : wanted.pages) {
    const Launch launch = LaunchOf(job, way, wanted.effort, count);
    GpuBenchTime& time = row.times.emplace_back();
    time.pages = count;
    CRUMB_TRY(timer.Once(1, launch).status());  // what the first launch loads is nobody's time
    CRUMB_ASSIGN(time.burst_us, timer.Burst(wanted.bursts, launch));
    CRUMB_ASSIGN(time.sustained_us, timer.Sustained(wanted.sustained_launches, launch));
  }
  if (way == GpuBenchWay::kEncode) CRUMB_TRY(job.CheckReports());
  return row;
}

}  // namespace

absl::StatusOr<GpuBenchDevice> OpenGpuBench(int device) {
  const GpuProbe probe = ProbeGpus();
  if (probe.devices.empty()) {
    return absl::UnavailableError(probe.note);
  }
  CRUMB_TRY(CheckCudaDevice(device));
  if (static_cast<size_t>(device) >= probe.devices.size()) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", device, " does not say what it is"));
  }
  const GpuInfo& info = probe.devices[static_cast<size_t>(device)];
  GpuBenchDevice found;
  found.index = device;
  found.name = info.name;
  found.compute_major = info.compute_major;
  found.compute_minor = info.compute_minor;
  found.memory_bytes = info.memory_bytes;
  CRUMB_ASSIGN(found.copy_bytes_per_us, CopyRate(device));
  return found;
}

absl::StatusOr<GpuBenchResult> MeasureGpuCodec(const GpuBenchDevice& device,
                                               const GpuBenchCase& wanted) {
  CRUMB_TRY(CheckGpuBenchCase(wanted));
  CRUMB_ASSIGN(const Timer timer, Timer::Make(device.index));
  const uint32_t all = *std::max_element(wanted.pages.begin(), wanted.pages.end());
  GpuBenchResult result;
  const absl::StatusOr<CudaBenchJob> job = CudaBenchJob::Make(device.index, wanted, all);
  if (absl::IsFailedPrecondition(job.status())) {
    for (const GpuBenchWay way : wanted.ways) {
      result.rows.push_back({way, std::string(job.status().message()), {}});
    }
    return result;
  }
  CRUMB_TRY(job.status());
  result.raw_page_bytes = job->raw_page_bytes();
  result.payload_page_bytes = job->codec().layout().payload_bytes();
  for (const GpuBenchWay way : wanted.ways) {
    CRUMB_ASSIGN(GpuBenchRow row, MeasureWay(wanted, *job, timer, way));
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace crumb
