// The crumb encode kernels of one head dim. Included by the file of that dim alone.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/codec/cuda_crumb_values.cuh"
#include "gpu/codec/cuda_dispatch.cuh"

namespace crumb::cuda {

template <int kDim>
struct CrumbDispatch {
  // Warps of a block that find room; 0: none does.
  template <int kBits, bool kSearch>
  static uint32_t Warps(uint32_t page_tokens, uint32_t shared_bytes) {
    using Block = CrumbBlock<kDim, kBits, kSearch>;
    if (shared_bytes <= Block::kShares) return 0;
    const uint32_t share = Block::Share::Bytes(page_tokens);
    return std::min<uint32_t>(CrumbWarpsOf<kDim, kSearch>(),
                              (shared_bytes - Block::kShares) / share);
  }

  template <int kBits, bool kSearch>
  static cudaError_t Run(const CudaCrumbLaunch& launch) {
    const CudaLaunch& base = launch.base;
    const uint32_t page_tokens = base.batch.page_tokens;
    const uint32_t warps = Warps<kBits, kSearch>(page_tokens, launch.shared_bytes);
    if (warps == 0) return cudaErrorInvalidConfiguration;
    const uint32_t blocks = std::min(launch.search.units, base.multiprocessors);
    return LaunchKernel(&CrumbEncode<kDim, kBits, kSearch>, base, dim3(blocks), warps * 32,
                        CrumbBlock<kDim, kBits, kSearch>::Bytes(warps, page_tokens), base.batch,
                        launch.search, base.heads, base.heads_count, base.scales);
  }

  template <bool kSearch>
  static cudaError_t OfBits(const CudaCrumbLaunch& launch) {
    if (launch.base.form.bits == 2) return Run<2, kSearch>(launch);
    return launch.base.form.bits == 3 ? Run<3, kSearch>(launch) : Run<4, kSearch>(launch);
  }

  template <int kBits>
  static cudaError_t RunValues(const CudaCrumbLaunch& launch) {
    using K = CrumbValuesKernel<kDim, kBits>;
    const CudaLaunch& base = launch.base;
    const dim3 grid = GridOf(base, K::kTiles, K::kBlocks);
    return LaunchKernel(&CrumbValues<kDim, kBits>, base, grid, K::kThreads,
                        sizeof(typename K::Shared), base.batch, launch.search, launch.follows,
                        base.heads, base.heads_count, base.scales);
  }

  static cudaError_t Launch(const CudaCrumbLaunch& launch) {
    if (launch.base.form.values) {
      return launch.base.form.bits == 2 ? RunValues<2>(launch) : RunValues<4>(launch);
    }
    const bool search = launch.base.form.search && launch.search.effort != kEffortDraft;
    return search ? OfBits<true>(launch) : OfBits<false>(launch);
  }

  template <int kBits>
  static cudaError_t PrepareBits(uint32_t page_tokens, uint32_t shared_bytes) {
    if (Warps<kBits, true>(page_tokens, shared_bytes) == 0 ||
        Warps<kBits, false>(page_tokens, shared_bytes) == 0) {
      return cudaErrorInvalidConfiguration;
    }
    const cudaError_t error = Prepare(&CrumbEncode<kDim, kBits, true>, shared_bytes);
    return error == cudaSuccess ? Prepare(&CrumbEncode<kDim, kBits, false>, shared_bytes) : error;
  }

  static cudaError_t PrepareFor(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes) {
    const uint32_t bits = form.bits;
    if (form.values) {
      using Two = CrumbValuesKernel<kDim, 2>;
      using Four = CrumbValuesKernel<kDim, 4>;
      return bits == 2 ? Prepare(&CrumbValues<kDim, 2>, sizeof(typename Two::Shared))
                       : Prepare(&CrumbValues<kDim, 4>, sizeof(typename Four::Shared));
    }
    if (bits == 2) return PrepareBits<2>(page_tokens, shared_bytes);
    return bits == 3 ? PrepareBits<3>(page_tokens, shared_bytes)
                     : PrepareBits<4>(page_tokens, shared_bytes);
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_
