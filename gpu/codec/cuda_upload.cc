// One synchronous copy.
#include "gpu/codec/cuda_upload.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "gpu/device/cuda_status.h"

namespace crumb {

// WHY by pinned memory: only such a copy has arrived when the call returns, and launches go to
// streams that do not wait for it.
absl::StatusOr<DeviceBuffer> UploadCodecTable(int device, const void* data, uint64_t bytes) {
  CRUMB_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Create(device, bytes));
  CRUMB_ASSIGN(const PinnedBuffer staged, PinnedBuffer::Create(device, bytes));
  std::memcpy(staged.data(), data, bytes);
  CRUMB_TRY(CudaStatus(cudaMemcpy(buffer.data(), staged.data(), bytes, cudaMemcpyHostToDevice),
                       "copying codec tables to the device", device));
  return buffer;
}

}  // namespace crumb
