// The kernel of raw pages on the thread of a fake stream, in the order of its work: the same
// places, computed by the same functions. And what of the runtime codecs call beside
// cuda_fake_runtime.cc.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "gpu/codec/cuda_launch.h"
#include "gpu/codec/cuda_raw_params.h"
#include "tests/conformance/gpu/cuda_fake_runtime.h"

namespace crumb {
namespace {

void MoveChunk(const CudaRawLaunch& launch, uint32_t page_index, uint32_t chunk) {
  const CudaRawMove& move = launch.move;
  const CudaRawTensor& tensor = move.tensors[CudaRawTensorOf(move, chunk)];
  const CudaPage& page = move.pages[page_index];
  const uint32_t begin = (chunk - tensor.chunk_first) * kCudaRawChunk;
  for (uint32_t index = begin; index < begin + kCudaRawChunk && index < tensor.units; ++index) {
    const CudaRawUnit unit = CudaRawUnitOf(move, tensor, page, index);
    auto* const payload = reinterpret_cast<uint8_t*>(page.payload) +
                          (uint64_t{tensor.first} + index) * launch.unit_bytes;
    auto* const row = reinterpret_cast<uint8_t*>(unit.row) + unit.unit * launch.unit_bytes;
    if (launch.encode && !unit.there) std::memset(payload, 0, launch.unit_bytes);
    if (!unit.there) continue;
    std::memcpy(launch.encode ? payload : row, launch.encode ? row : payload, launch.unit_bytes);
  }
}

void Run(void* arg) {
  const std::unique_ptr<CudaRawLaunch> launch(static_cast<CudaRawLaunch*>(arg));
  for (uint32_t page = 0; page < launch->move.page_count; ++page) {
    for (uint32_t chunk = 0; chunk < launch->move.chunks; ++chunk) {
      MoveChunk(*launch, page, chunk);
    }
  }
}

}  // namespace

int LaunchRawMove(const CudaRawLaunch& launch) {
  return fake_cuda::AddToStream(launch.stream, &Run,
                                std::make_unique<CudaRawLaunch>(launch).release());
}
int LaunchResetReports(CudaPageReport*, uint32_t, void*) { return cudaErrorNotSupported; }

}  // namespace crumb

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}

}  // extern "C"
