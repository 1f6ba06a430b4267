// Decode kernels for head dim 256.
#include "gpu/codec/cuda_decode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Decode256(const CudaLaunch& launch) { return DecodeDispatch<256>::Launch(launch); }
int PrepareDecode256() { return DecodeDispatch<256>::PrepareAll(); }
}  // namespace crumb::cuda
