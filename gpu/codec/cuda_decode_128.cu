// Decode kernels for head dim 128.
#include "gpu/codec/cuda_decode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Decode128(const CudaLaunch& launch) { return DecodeDispatch<128>::Launch(launch); }
int PrepareDecode128() { return DecodeDispatch<128>::PrepareAll(); }
}  // namespace crumb::cuda
