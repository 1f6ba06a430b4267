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

int PrepareCodecKernels() {
  for (const auto prepare :
       {cuda::PrepareDecode64, cuda::PrepareDecode128, cuda::PrepareDecode256,
        cuda::PrepareEncode64, cuda::PrepareEncode128, cuda::PrepareEncode256}) {
    if (const int error = prepare(); error != 0) return error;
  }
  return 0;
}

}  // namespace crumb
