// Words of gpu_bench.h that need no CUDA.
#include "gpu/codec/gpu_bench.h"

namespace crumb {

const char* ToString(GpuBenchWay way) {
  switch (way) {
    case GpuBenchWay::kEncode:
      return "encode";
    case GpuBenchWay::kDecode:
      return "decode";
    case GpuBenchWay::kDecodeRotated:
      return "rotated";
  }
  return "?";
}

}  // namespace crumb
