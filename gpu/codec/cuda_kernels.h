// What the kernel files offer to cuda_launch.cc: one file per head dim, so that they compile side
// by side. Every function returns a cudaError_t.
#ifndef CRUMB_GPU_CODEC_CUDA_KERNELS_H_
#define CRUMB_GPU_CODEC_CUDA_KERNELS_H_

#include "gpu/codec/cuda_launch.h"

namespace crumb::cuda {

int Decode64(const CudaLaunch& launch);
int Decode128(const CudaLaunch& launch);
int Decode256(const CudaLaunch& launch);
int Encode64(const CudaLaunch& launch);
int Encode128(const CudaLaunch& launch);
int Encode256(const CudaLaunch& launch);
int CrumbEncode64(const CudaCrumbLaunch& launch);
int CrumbEncode128(const CudaCrumbLaunch& launch);
int CrumbEncode256(const CudaCrumbLaunch& launch);
int PrepareCrumb64(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes);
int PrepareCrumb128(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes);
int PrepareCrumb256(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes);
int PrepareDecode64();
int PrepareDecode128();
int PrepareDecode256();
int PrepareEncode64();
int PrepareEncode128();
int PrepareEncode256();

}  // namespace crumb::cuda

#endif  // CRUMB_GPU_CODEC_CUDA_KERNELS_H_
