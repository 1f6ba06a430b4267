// Encode kernels of OSCAR-like codecs for head dim 128.
#include "gpu/codec/cuda_encode_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int Encode128(const CudaLaunch& launch) { return EncodeDispatch<128>::Launch(launch); }
int PrepareEncode128() { return EncodeDispatch<128>::PrepareAll(); }
}  // namespace crumb::cuda
