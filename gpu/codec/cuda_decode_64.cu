// Decode kernels for head dim 64.
#include "gpu/codec/cuda_decode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Decode64(const CudaLaunch& launch) { return DecodeDispatch<64>::Launch(launch); }
int PrepareDecode64() { return DecodeDispatch<64>::PrepareAll(); }
}  // namespace crumb::cuda
