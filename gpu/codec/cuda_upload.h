// Tables of a codec from here to its device. Start-up only; waits. Any thread.
#ifndef CRUMB_GPU_CODEC_CUDA_UPLOAD_H_
#define CRUMB_GPU_CODEC_CUDA_UPLOAD_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "gpu/device/cuda_memory.h"

namespace crumb {

absl::StatusOr<DeviceBuffer> UploadCodecTable(int device, const void* data, uint64_t bytes);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_UPLOAD_H_
