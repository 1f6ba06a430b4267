// What the kernel files of one head dim have in common: grids, shared memory, choice of kernel.
#ifndef CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_
#define CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/codec/cuda_launch.h"

namespace crumb::cuda {

inline constexpr uint64_t kTilesEnough = 8;

// How many blocks share the tiles of a group of heads (x), and how many groups are worked on at
// once (y). Where each group has work enough for all blocks they walk the groups together: K and V
// take differently long. Else such that the busiest warpgroup has the fewest tiles, counting the
// start of a group as one, since an image must be there first.
inline dim3 GridOf(const CudaLaunch& launch, uint32_t tiles_per_block, uint32_t blocks_per_sm) {
  const CudaTiling tiling = CudaTilingOf(launch.batch.page_tokens);
  const uint64_t heads = uint64_t{launch.batch.page_count} * launch.heads_most;
  const uint64_t tiles = tiling.blocks_per_tile == 1
                             ? heads * tiling.tiles_per_block
                             : (heads + tiling.blocks_per_tile - 1) / tiling.blocks_per_tile;
  const uint64_t room = uint64_t{launch.multiprocessors} * blocks_per_sm;
  const uint64_t wanted = std::max<uint64_t>(1, (tiles + tiles_per_block - 1) / tiles_per_block);
  if (wanted >= kTilesEnough * room) return dim3(static_cast<uint32_t>(room));
  const uint64_t most = std::min<uint64_t>(launch.heads_count, room);
  uint64_t best_x = 0, best_y = 0, best = ~uint64_t{0};
  for (uint64_t rounds = 1; rounds <= launch.heads_count; ++rounds) {
    const uint64_t y = (launch.heads_count + rounds - 1) / rounds;
    if (y > most) continue;
    const uint64_t x = std::min(room / y, wanted);
    const uint64_t cost = rounds * ((wanted + x - 1) / x + 1);
    if (cost < best) best = cost, best_x = x, best_y = y;
  }
  return dim3(static_cast<uint32_t>(best_x), static_cast<uint32_t>(best_y));
}

// More dynamic shared memory than 48 KiB must be asked for, once per kernel and device.
template <typename Kernel>
cudaError_t Prepare(Kernel kernel, size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

// On the launch's stream. The kernel may begin while the one before it on the stream ends, and
// waits for that itself (AwaitEarlier). WHY large launches too: 1.5 to 3 % (docs/gpu.md).
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), const CudaLaunch& launch, dim3 grid,
                         uint32_t threads, size_t shared_bytes, const Arguments&... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(launch.stream);
  config.attrs = &overlap;
  config.numAttrs = launch.overlaps ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  const cudaError_t last = cudaGetLastError();  // taken: the next launch must not find it
  return error != cudaSuccess ? error : last;
}

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_DISPATCH_CUH_
