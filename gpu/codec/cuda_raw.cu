// Raw pages between a worker's paged tensors and payloads in canonical order. A block moves runs of
// a payload, so that what a warp reads or writes there is one run of bytes: payloads may lie in
// host memory, and PCIe wants whole lines. Rows are 64 bytes and longer as a rule, so the worker's
// side is whole sectors too.
#include <cuda_runtime.h>

#include <algorithm>

#include "gpu/codec/cuda_raw_params.h"

namespace crumb {
namespace cuda {
namespace {

// Every byte is used once: loads and stores that caches let go first.
template <typename Unit, bool kWhole>
__device__ Unit LoadRow(uint64_t row, uint32_t unit) {
  if constexpr (kWhole) {
    return __ldcs(reinterpret_cast<const Unit*>(row) + unit);
  } else {
    union {
      Unit whole;
      uint16_t halves[sizeof(Unit) / 2];
    } out;
    const uint16_t* const from = reinterpret_cast<const uint16_t*>(row + unit * sizeof(Unit));
#pragma unroll
    for (uint32_t i = 0; i < sizeof(Unit) / 2; ++i) out.halves[i] = __ldcs(from + i);
    return out.whole;
  }
}

template <typename Unit, bool kWhole>
__device__ void StoreRow(uint64_t row, uint32_t unit, Unit value) {
  if constexpr (kWhole) {
    __stcs(reinterpret_cast<Unit*>(row) + unit, value);
  } else {
    union {
      Unit whole;
      uint16_t halves[sizeof(Unit) / 2];
    } in;
    in.whole = value;
    uint16_t* const to = reinterpret_cast<uint16_t*>(row + unit * sizeof(Unit));
#pragma unroll
    for (uint32_t i = 0; i < sizeof(Unit) / 2; ++i) __stcs(to + i, in.halves[i]);
  }
}

template <typename Unit, bool kWhole, bool kEncode>
__device__ void MoveChunk(const CudaRawMove& move, const CudaRawTensor& tensor,
                          const CudaPage& page, uint32_t begin) {
  Unit* const payload = reinterpret_cast<Unit*>(page.payload) + tensor.first;
  CudaRawUnit places[kCudaRawUnits];
  Unit values[kCudaRawUnits];
#pragma unroll
  for (uint32_t i = 0; i < kCudaRawUnits; ++i) {
    const uint32_t index = begin + i * kCudaRawThreads + threadIdx.x;
    values[i] = Unit{};
    places[i] = {};
    if (index >= tensor.units) continue;
    places[i] = CudaRawUnitOf(move, tensor, page, index);
    if (!places[i].there) continue;
    values[i] =
        kEncode ? LoadRow<Unit, kWhole>(places[i].row, places[i].unit) : __ldcs(payload + index);
  }
#pragma unroll
  for (uint32_t i = 0; i < kCudaRawUnits; ++i) {
    const uint32_t index = begin + i * kCudaRawThreads + threadIdx.x;
    if (kEncode) {
      if (index < tensor.units) __stcs(payload + index, values[i]);
    } else if (places[i].there) {
      StoreRow<Unit, kWhole>(places[i].row, places[i].unit, values[i]);
    }
  }
}

template <typename Unit, bool kWhole, bool kEncode>
__global__ void __launch_bounds__(kCudaRawThreads) MoveRaw(const CudaRawMove move) {
  const uint32_t items = move.page_count * move.chunks;
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const uint32_t page = item / move.chunks;
    const uint32_t chunk = item - page * move.chunks;
    const CudaRawTensor tensor = move.tensors[CudaRawTensorOf(move, chunk)];
    MoveChunk<Unit, kWhole, kEncode>(move, tensor, move.pages[page],
                                     (chunk - tensor.chunk_first) * kCudaRawChunk);
  }
}

template <typename Unit, bool kWhole>
int Launch(const CudaRawLaunch& launch) {
  const uint32_t items = launch.move.page_count * launch.move.chunks;
  const uint32_t blocks = std::min(items, kCudaRawBlocks * launch.multiprocessors);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (launch.encode) {
    MoveRaw<Unit, kWhole, true><<<blocks, kCudaRawThreads, 0, stream>>>(launch.move);
  } else {
    MoveRaw<Unit, kWhole, false><<<blocks, kCudaRawThreads, 0, stream>>>(launch.move);
  }
  return cudaGetLastError();  // taken: the next launch must not find it
}

}  // namespace
}  // namespace cuda

int LaunchRawMove(const CudaRawLaunch& launch) {
  if (launch.unit_bytes == 16) {
    return launch.aligned ? cuda::Launch<uint4, true>(launch) : cuda::Launch<uint4, false>(launch);
  }
  if (launch.unit_bytes == 4) {
    return launch.aligned ? cuda::Launch<uint32_t, true>(launch)
                          : cuda::Launch<uint32_t, false>(launch);
  }
  return cuda::Launch<uint16_t, true>(launch);
}

}  // namespace crumb
