// From head dims to kernel files. Any thread.
#include "gpu/codec/cuda_launch.h"

#include "cachesvc/base/check.h"
#include "gpu/codec/cuda_image.h"
#include "gpu/codec/cuda_kernels.h"

namespace crumb {

int LaunchDecode(const CudaLaunch& launch) {
  CRUMB_CHECK(CudaDim(launch.form.dim) && launch.form.bits >= 2 && launch.form.bits <= 4);
  if (launch.heads_count == 0 || launch.batch.page_count == 0) return 0;
  if (launch.form.dim == 64) return cuda::Decode64(launch);
  return launch.form.dim == 128 ? cuda::Decode128(launch) : cuda::Decode256(launch);
}

int LaunchAffineEncode(const CudaLaunch& launch) {
  CRUMB_CHECK(CudaDim(launch.form.dim) && (launch.form.bits == 2 || launch.form.bits == 4));
  if (launch.heads_count == 0 || launch.batch.page_count == 0) return 0;
  if (launch.form.dim == 64) return cuda::Encode64(launch);
  return launch.form.dim == 128 ? cuda::Encode128(launch) : cuda::Encode256(launch);
}

int LaunchCrumbEncode(const CudaCrumbLaunch& launch) {
  const CudaForm& form = launch.base.form;
  CRUMB_CHECK(CudaDim(form.dim) && form.bits >= 2 && form.bits <= 4);
  if (launch.base.heads_count == 0 || launch.base.batch.page_count == 0) return 0;
  if (form.dim == 64) return cuda::CrumbEncode64(launch);
  return form.dim == 128 ? cuda::CrumbEncode128(launch) : cuda::CrumbEncode256(launch);
}

int PrepareCrumbEncode(const CudaForm& form, uint32_t page_tokens, uint32_t shared_bytes) {
  CRUMB_CHECK(CudaDim(form.dim) && form.bits >= 2 && form.bits <= 4);
  if (form.dim == 64) return cuda::PrepareCrumb64(form, page_tokens, shared_bytes);
  return form.dim == 128 ? cuda::PrepareCrumb128(form, page_tokens, shared_bytes)
                         : cuda::PrepareCrumb256(form, page_tokens, shared_bytes);
}

int PrepareCodecKernels(uint32_t dim, bool encode) {
  CRUMB_CHECK(CudaDim(dim));
  if (dim == 64) return encode ? cuda::PrepareEncode64() : cuda::PrepareDecode64();
  if (dim == 128) return encode ? cuda::PrepareEncode128() : cuda::PrepareDecode128();
  return encode ? cuda::PrepareEncode256() : cuda::PrepareDecode256();
}

}  // namespace crumb
