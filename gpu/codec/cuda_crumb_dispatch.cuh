// The crumb encode kernels of one head dim. Included by the file of that dim alone.
#ifndef CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/codec/cuda_crumb_encode.cuh"
#include "gpu/codec/cuda_dispatch.cuh"

namespace crumb::cuda {

template <int kDim>
struct CrumbDispatch {
  // Warps of a block that find room; 0: none does.
  template <int kBits>
  static uint32_t Warps(uint32_t page_tokens, uint32_t shared_bytes) {
    using Block = CrumbBlock<kDim, kBits>;
    if (shared_bytes <= Block::kShares) return 0;
    const uint32_t share = CrumbShare<kDim, kBits>::Bytes(page_tokens);
    return std::min<uint32_t>(CrumbWarpsOf<kDim>(), (shared_bytes - Block::kShares) / share);
  }

  template <int kBits>
  static cudaError_t Run(const CudaCrumbLaunch& launch) {
    const uint32_t page_tokens = launch.base.batch.page_tokens;
    const uint32_t warps = Warps<kBits>(page_tokens, launch.shared_bytes);
    if (warps == 0) return cudaErrorInvalidConfiguration;
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < launch.base.heads_count; ++i) {
      const uint64_t units = uint64_t{launch.base.batch.page_count} * launch.table[i].count;
      chunks += (units + warps - 1) / warps;
    }
    const auto blocks =
        static_cast<uint32_t>(std::min<uint64_t>(chunks, launch.base.multiprocessors));
    CrumbEncode<kDim, kBits>
        <<<blocks, warps * 32, CrumbBlock<kDim, kBits>::Bytes(warps, page_tokens),
           static_cast<cudaStream_t>(launch.base.stream)>>>(
            launch.base.batch, launch.search, launch.base.heads, launch.base.heads_count,
            launch.base.scales);
    return cudaGetLastError();
  }

  static cudaError_t Launch(const CudaCrumbLaunch& launch) {
    if (launch.base.form.bits == 2) return Run<2>(launch);
    return launch.base.form.bits == 3 ? Run<3>(launch) : Run<4>(launch);
  }

  template <int kBits>
  static cudaError_t PrepareBits(uint32_t page_tokens, uint32_t shared_bytes) {
    if (Warps<kBits>(page_tokens, shared_bytes) == 0) return cudaErrorInvalidConfiguration;
    return Prepare(&CrumbEncode<kDim, kBits>, shared_bytes);
  }

  static cudaError_t PrepareFor(uint32_t bits, uint32_t page_tokens, uint32_t shared_bytes) {
    if (bits == 2) return PrepareBits<2>(page_tokens, shared_bytes);
    return bits == 3 ? PrepareBits<3>(page_tokens, shared_bytes)
                     : PrepareBits<4>(page_tokens, shared_bytes);
  }
};

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_CRUMB_DISPATCH_CUH_
