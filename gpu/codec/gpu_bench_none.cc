// The benchmark of a build without CUDA: says so.
#include "gpu/codec/gpu_bench.h"

namespace crumb {
namespace {

absl::Status NoCuda() {
  return absl::UnavailableError(
      "this crumbctl was built without CUDA: configure with -DCRUMB_CUDA=ON on a machine that has "
      "nvcc 13.0 or newer, or leave --device out to measure the CPU's codec");
}

}  // namespace

absl::StatusOr<GpuBenchDevice> OpenGpuBench(int) { return NoCuda(); }
absl::StatusOr<GpuBenchResult> MeasureGpuCodec(const GpuBenchDevice&, const GpuBenchCase&) {
  return NoCuda();
}

}  // namespace crumb
