// Launches of the codec kernels: from a form of tensors to the kernel made for it. Host code; no
// CUDA types, so that callers need no toolkit. A launch never waits; one thread per stream.
#ifndef CRUMB_GPU_CODEC_CUDA_LAUNCH_H_
#define CRUMB_GPU_CODEC_CUDA_LAUNCH_H_

#include <cstdint>

#include "gpu/codec/cuda_crumb_params.h"
#include "gpu/codec/cuda_params.h"

namespace crumb {

// Tensors that one kernel serves.
struct CudaForm {
  uint32_t dim = 0;
  uint32_t bits = 0;
  bool grouped = false;  // more than one scale in a row
  bool base = false;     // some tensor has a mean
  bool search = false;   // crumb encoders: K with a metric
  bool values = false;   // crumb encoders: V
  friend bool operator==(const CudaForm&, const CudaForm&) = default;
};

struct CudaLaunch {
  CudaForm form;
  CudaBatch batch = {};
  const CudaHeads* heads = nullptr;  // device memory
  uint32_t heads_count = 0;
  uint32_t heads_most = 0;        // of the largest entry: heads that share a rotation
  const float* scales = nullptr;  // device: kCrumbScale
  uint32_t multiprocessors = 0;
  void* stream = nullptr;  // cudaStream_t
  bool overlaps = false;   // KernelsOverlap()
};

struct CudaCrumbLaunch {
  CudaLaunch base;
  CudaCrumbSearch search = {};
  bool follows = false;       // V, right behind the launch of the same pages' K
  uint32_t shared_bytes = 0;  // of a block at most, on this device
};

// A cudaError_t; 0: launched. REQUIRES: CudaDim(dim), bits 2 to 4, a batch that was checked.
int LaunchDecode(const CudaLaunch& launch);
// The OSCAR-like codecs: 2 and 4 bits.
int LaunchAffineEncode(const CudaLaunch& launch);
// The crumb codecs: 2, 3 and 4 bits. REQUIRES: entries for K are of one head each; V has
// 2 or 4 bits.
int LaunchCrumbEncode(const CudaCrumbLaunch& launch);

// Whether the kernels that the current device runs were compiled for launches that begin before the
// one ahead of them on the stream has ended. A cudaError_t; 0: `*out` is set.
int KernelsOverlap(bool* out);

int LaunchResetReports(CudaPageReport* reports, uint32_t count, void* stream);

// Once per device and head dim, before the first launch there: lets kernels take the shared memory
// they need. An error: this device has less.
int PrepareCodecKernels(uint32_t dim, bool encode);
// Likewise, for pages of that many tokens.
int PrepareCrumbEncode(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_LAUNCH_H_
