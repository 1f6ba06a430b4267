// Encode kernels of OSCAR-like codecs for head dim 64.
#include "gpu/codec/cuda_encode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Encode64(const CudaLaunch& launch) { return EncodeDispatch<64>::Launch(launch); }
int PrepareEncode64() { return EncodeDispatch<64>::PrepareAll(); }
}  // namespace crumb::cuda
