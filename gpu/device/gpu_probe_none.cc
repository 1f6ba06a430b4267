// The probe of a build without CUDA: says so.
#include "gpu/device/gpu_probe.h"

namespace crumb {

GpuProbe ProbeGpus() {
  GpuProbe probe;
  probe.note = "built without CUDA; configure with -DCRUMB_CUDA=ON on a machine that has nvcc";
  return probe;
}

}  // namespace crumb
