// The decode kernels of one head dim. Included by the file of that dim alone.
#ifndef CRUMB_GPU_CODEC_CUDA_DECODE_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_DECODE_DISPATCH_CUH_

#include "gpu/codec/cuda_decode.cuh"
#include "gpu/codec/cuda_dispatch.cuh"

namespace crumb::cuda {

template <int kDim>
struct DecodeDispatch {
  template <int kBits, bool kGrouped, bool kBase>
  static cudaError_t Run(const CudaLaunch* launch) {
    using K = DecodeKernel<kDim, kBits, kGrouped, kBase>;
    const auto kernel = &Decode<kDim, kBits, kGrouped, kBase>;
    if (launch == nullptr) return Prepare(kernel, sizeof(typename K::Shared));
    const dim3 grid = GridOf(*launch, K::kTiles, K::kBlocks);
    return LaunchKernel(kernel, *launch, grid, K::kThreads, sizeof(typename K::Shared),
                        launch->batch, launch->heads, launch->heads_count, launch->scales);
  }

  template <int kBits>
  static cudaError_t OfBits(const CudaLaunch& launch) {
    const CudaForm& form = launch.form;
    if constexpr (kBits != 3) {
      if (form.grouped) {
        return form.base ? Run<kBits, true, true>(&launch) : Run<kBits, true, false>(&launch);
      }
    }
    return form.base ? Run<kBits, false, true>(&launch) : Run<kBits, false, false>(&launch);
  }

  static cudaError_t Launch(const CudaLaunch& launch) {
    if (launch.form.bits == 2) return OfBits<2>(launch);
    if (launch.form.bits == 3) return OfBits<3>(launch);
    return OfBits<4>(launch);
  }

  template <int kBits>
  static cudaError_t PrepareBits() {
    cudaError_t error = Run<kBits, false, true>(nullptr);
    if (error == cudaSuccess) error = Run<kBits, false, false>(nullptr);
    if constexpr (kBits != 3) {
      if (error == cudaSuccess) error = Run<kBits, true, true>(nullptr);
      if (error == cudaSuccess) error = Run<kBits, true, false>(nullptr);
    }
    return error;
  }

  static cudaError_t PrepareAll() {
    cudaError_t error = PrepareBits<2>();
    if (error == cudaSuccess) error = PrepareBits<3>();
    return error == cudaSuccess ? PrepareBits<4>() : error;
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_DECODE_DISPATCH_CUH_
