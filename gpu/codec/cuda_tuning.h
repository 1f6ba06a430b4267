// Tuning constants of the codec kernels, per architecture: the only place for them.
#ifndef CRUMB_GPU_CODEC_CUDA_TUNING_H_
#define CRUMB_GPU_CODEC_CUDA_TUNING_H_

namespace crumb {

// Only the -a targets have warpgroup products; all others use mma.sync.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kCudaWarpgroups = true;
#else
inline constexpr bool kCudaWarpgroups = false;
#endif

// Whether a kernel may begin while the one before it on its stream ends.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kCudaDependentLaunch = false;
#else
inline constexpr bool kCudaDependentLaunch = true;
#endif

struct KernelTuning {
  int tiles;      // warpgroups (of 64 rows) in a block
  int blocks;     // of one multiprocessor
  int depth = 2;  // tiles that are fetched ahead (decode)
};

// By head dim. Measured on an H200 (docs/gpu.md); other architectures start from the same.
template <int kDim>
constexpr KernelTuning DecodeTuningOf() {
  if constexpr (kDim == 256) return {2, 1, 1};
  if constexpr (kDim == 64) return {2, 3};
  return {2, 2};
}

template <int kDim>
constexpr KernelTuning EncodeTuningOf() {
  if constexpr (kDim == 256) return {2, 1};
  if constexpr (kDim == 64) return {3, 2};
  return {4, 1};
}

// The crumb encoders' kernel for V.
template <int kDim>
constexpr KernelTuning CrumbValuesTuningOf() {
  if constexpr (kDim == 256) return {2, 1};
  return {4, 1};
}

// Warps of a block of the crumb encoders at most; fewer where shared memory has no room for them.
// kSearch: those with error feedback.
template <int kDim, bool kSearch>
constexpr int CrumbWarpsOf() {
  if constexpr (kSearch) return kDim == 64 ? 12 : 8;
  return kDim == 256 ? 8 : 12;
}

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_TUNING_H_
