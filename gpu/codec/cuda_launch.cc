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

int PrepareCodecKernels(uint32_t dim, bool encode) {
  CRUMB_CHECK(CudaDim(dim));
  if (dim == 64) return encode ? cuda::PrepareEncode64() : cuda::PrepareDecode64();
  if (dim == 128) return encode ? cuda::PrepareEncode128() : cuda::PrepareDecode128();
  return encode ? cuda::PrepareEncode256() : cuda::PrepareDecode256();
}

}  // namespace crumb
