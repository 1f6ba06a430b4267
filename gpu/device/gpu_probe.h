// What GPUs this process could use. Start-up and tools only; may take a second; any thread.
// cuda_probe.cc asks the CUDA runtime; gpu_probe_none.cc is the build without CUDA.
#ifndef CRUMB_GPU_DEVICE_GPU_PROBE_H_
#define CRUMB_GPU_DEVICE_GPU_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace crumb {

struct GpuInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  bool mps = false;  // contexts of this device are shared by MPS: kernels of processes overlap
};

struct GpuProbe {
  bool built_with_cuda = false;
  int runtime_version = 0;  // as CUDA counts: 13000 = 13.0; 0 without CUDA
  int driver_version = 0;   // 0 = no driver
  std::vector<GpuInfo> devices;
  std::string note;  // why there are none; empty if there are some
};

GpuProbe ProbeGpus();

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_GPU_PROBE_H_
