// Crumb encode kernels of head dim 128.
#include "gpu/codec/cuda_crumb_dispatch.cuh"
#include "gpu/codec/cuda_kernels.h"

namespace crumb::cuda {
int CrumbEncode128(const CudaCrumbLaunch& launch) { return CrumbDispatch<128>::Launch(launch); }
int PrepareCrumb128(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes) {
  return CrumbDispatch<128>::PrepareFor(form, page_tokens, shared_bytes);
}
}  // namespace crumb::cuda
