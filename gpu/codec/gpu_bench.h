// What the codec costs on a GPU: burst and sustained times of encode and decode, beside the rate at
// which that GPU copies. Tools only; takes seconds, and gigabytes of the GPU's memory. Must never
// run beside an engine whose latency matters. cuda_bench.cc measures; gpu_bench_none.cc is the
// build without CUDA. Any thread, one at a time per device.
#ifndef CRUMB_GPU_CODEC_GPU_BENCH_H_
#define CRUMB_GPU_CODEC_GPU_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "gpu/codec/descriptor.h"

namespace crumb {

// Pages are cut into slots of so many tokens, as engines do.
inline constexpr uint32_t kGpuBenchSlotTokens = 16;
inline constexpr uint32_t kGpuBenchPagesMax = 1u << 20;

struct GpuBenchDevice {
  int index = 0;
  std::string name;
  int compute_major = 0, compute_minor = 0;
  uint64_t memory_bytes = 0;
  double copy_bytes_per_us = 0;  // read and written, by a copy within the device
};

enum class GpuBenchWay : uint8_t { kEncode = 0, kDecode = 1, kDecodeRotated = 2 };
const char* ToString(GpuBenchWay way);  // "encode", "decode", "rotated"

struct GpuBenchCase {
  CodecKind kind = CodecKind::kOscarInt2;
  Effort effort = Effort::kNormal;
  uint32_t dim = 128, heads = 8, layers = 1;
  uint32_t page_tokens = 64;             // a multiple of kGpuBenchSlotTokens
  std::vector<uint32_t> pages = {4096};  // of one launch; each is measured
  std::vector<GpuBenchWay> ways = {GpuBenchWay::kEncode, GpuBenchWay::kDecode};
  uint32_t bursts = 7;              // single launches, each after the GPU was idle
  uint32_t sustained_launches = 0;  // back to back, five times; 0: as many as take 20 ms
};

struct GpuBenchTime {
  uint32_t pages = 0;
  double burst_us = 0;
  double sustained_us = 0;
};

struct GpuBenchRow {
  GpuBenchWay way = GpuBenchWay::kEncode;
  std::string why_not;              // there is no kernel for this; empty if there is
  std::vector<GpuBenchTime> times;  // one for each of GpuBenchCase::pages
};

struct GpuBenchResult {
  uint64_t raw_page_bytes = 0;
  uint64_t payload_page_bytes = 0;  // 0: there is no kernel at all
  std::vector<GpuBenchRow> rows;

  // What the raw and packed bytes of `pages` take at the rate of a copy: no kernel needs less.
  double FloorUs(const GpuBenchDevice& device, uint32_t pages) const {
    const double bytes = static_cast<double>(raw_page_bytes + payload_page_bytes) * pages;
    return bytes / device.copy_bytes_per_us;
  }
};

// INVALID_ARGUMENT: what no device can measure, by name.
absl::Status CheckGpuBenchCase(const GpuBenchCase& wanted);

// UNAVAILABLE: no CUDA in this build, no driver, no GPU. INVALID_ARGUMENT: no such device. The
// message names the remedy.
absl::StatusOr<GpuBenchDevice> OpenGpuBench(int device);
// A kind or way without a kernel is no error: its rows say why. RESOURCE_EXHAUSTED: the memory that
// it needs is not free; nothing was allocated then.
absl::StatusOr<GpuBenchResult> MeasureGpuCodec(const GpuBenchDevice& device,
                                               const GpuBenchCase& wanted);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_GPU_BENCH_H_
