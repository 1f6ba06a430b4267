// One codec with the device memory of a benchmark: raw rows as an engine keeps them, packed pages,
// tables. No CUDA types. One thread.
#ifndef CRUMB_GPU_CODEC_CUDA_BENCH_JOB_H_
#define CRUMB_GPU_CODEC_CUDA_BENCH_JOB_H_

#include <cstdint>
#include <memory>

#include "gpu/codec/cuda_codec.h"
#include "gpu/codec/gpu_bench.h"

namespace crumb {

class CudaBenchJob {
 public:
  // REQUIRES: `wanted` was checked. FAILED_PRECONDITION: there is no kernel for it.
  // RESOURCE_EXHAUSTED: not enough free memory for `pages`.
  static absl::StatusOr<CudaBenchJob> Make(int device, const GpuBenchCase& wanted, uint32_t pages);

  const CudaCodec& codec() const { return *codec_; }
  // The first `count` pages.
  CudaPages Pages(uint32_t count) const;
  uint64_t raw_page_bytes() const { return raw_page_bytes_; }
  // INTERNAL: an encoder found values that are not finite, where there are none.
  absl::Status CheckReports() const;

 private:
  CudaBenchJob() = default;
  absl::Status CheckMemory(int device, uint64_t table_bytes) const;
  absl::Status FillRaw();
  absl::Status FillTables(const GpuBenchCase& wanted);

  std::unique_ptr<CudaCodec> codec_;
  uint32_t pages_ = 0;
  uint64_t raw_page_bytes_ = 0;
  DeviceBuffer raw_, payloads_, page_table_, slots_, places_, reports_;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_BENCH_JOB_H_
