// What the kernel files of one head dim have in common: grids, shared memory, choice of kernel.
#ifndef CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/codec/cuda_launch.h"

namespace crumb::cuda {

// Every block walks all groups of heads if there is work enough in each, else blocks share them.
inline dim3 GridOf(const CudaLaunch& launch, uint32_t tiles_per_block, uint32_t blocks_per_sm) {
  const CudaTiling tiling = CudaTilingOf(launch.batch.page_tokens);
  const uint64_t blocks = uint64_t{launch.batch.page_count} * launch.heads_most;
  const uint64_t tiles = tiling.blocks_per_tile == 1
                             ? blocks * tiling.tiles_per_block
                             : (blocks + tiling.blocks_per_tile - 1) / tiling.blocks_per_tile;
  const uint64_t room = uint64_t{launch.multiprocessors} * blocks_per_sm;
  const uint64_t wanted = std::max<uint64_t>(1, (tiles + tiles_per_block - 1) / tiles_per_block);
  const uint64_t y = std::clamp<uint64_t>(room / wanted, 1, launch.heads_count);
  const uint64_t x = std::clamp<uint64_t>(room / y, 1, wanted);
  return dim3(static_cast<uint32_t>(x), static_cast<uint32_t>(y));
}

// More dynamic shared memory than 48 KiB must be asked for, once per kernel and device.
template <typename Kernel>
cudaError_t Prepare(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_
