// Crumb encode kernels of head dim 256.
#include "gpu/codec/cuda_crumb_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int CrumbEncode256(const CudaCrumbLaunch& launch) { return CrumbDispatch<256>::Launch(launch); }
int PrepareCrumb256(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes) {
  return CrumbDispatch<256>::PrepareFor(form, page_tokens, shared_bytes);
}
}  // namespace crumb::cuda
