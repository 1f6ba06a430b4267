// Crumb encode kernels of head dim 64.
#include "gpu/codec/cuda_crumb_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int CrumbEncode64(const CudaCrumbLaunch& launch) { return CrumbDispatch<64>::Launch(launch); }
int PrepareCrumb64(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes) {
  return CrumbDispatch<64>::PrepareFor(form, page_tokens, shared_bytes);
}
}  // namespace crumb::cuda
