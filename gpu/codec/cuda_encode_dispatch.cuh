// The encode kernels of one head dim. Included by the file of that dim alone.
#ifndef CRUMB_GPU_CODEC_CUDA_ENCODE_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_ENCODE_DISPATCH_CUH_

#include "gpu/codec/cuda_dispatch.cuh"
#include "gpu/codec/cuda_encode.cuh"

namespace crumb::cuda {

template <int kDim>
struct EncodeDispatch {
  template <int kBits, bool kGrouped, bool kBase>
  static cudaError_t Run(const CudaLaunch* launch) {
    using K = EncodeKernel<kDim, kBits, kGrouped, kBase>;
    const auto kernel = &Encode<kDim, kBits, kGrouped, kBase>;
    if (launch == nullptr) return Prepare(kernel, sizeof(typename K::Shared));
    const dim3 grid = GridOf(*launch, K::kTiles, K::kBlocks);
    return LaunchKernel(kernel, *launch, grid, K::kThreads, sizeof(typename K::Shared),
                        launch->batch, launch->heads, launch->heads_count);
  }

  template <int kBits>
  static cudaError_t OfBits(const CudaLaunch& launch) {
    const CudaForm& form = launch.form;
    if (form.grouped) {
      return form.base ? Run<kBits, true, true>(&launch) : Run<kBits, true, false>(&launch);
    }
    return form.base ? Run<kBits, false, true>(&launch) : Run<kBits, false, false>(&launch);
  }

  static cudaError_t Launch(const CudaLaunch& launch) {
    return launch.form.bits == 2 ? OfBits<2>(launch) : OfBits<4>(launch);
  }

  template <int kBits>
  static cudaError_t PrepareBits() {
    cudaError_t error = Run<kBits, false, true>(nullptr);
    if (error == cudaSuccess) error = Run<kBits, false, false>(nullptr);
    if (error == cudaSuccess) error = Run<kBits, true, true>(nullptr);
    return error == cudaSuccess ? Run<kBits, true, false>(nullptr) : error;
  }

  static cudaError_t PrepareAll() {
    const cudaError_t error = PrepareBits<2>();
    return error == cudaSuccess ? PrepareBits<4>() : error;
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_ENCODE_DISPATCH_CUH_
