// Encode kernels of OSCAR-like codecs for head dim 256.
#include "gpu/codec/cuda_encode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Encode256(const CudaLaunch& launch) { return EncodeDispatch<256>::Launch(launch); }
int PrepareEncode256() { return EncodeDispatch<256>::PrepareAll(); }
}  // namespace crumb::cuda
