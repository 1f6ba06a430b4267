// A kernel that keeps a whole GPU busy with a fixed amount of arithmetic. Tools only.
#ifndef CRUMB_GPU_DEVICE_CUDA_BUSY_H_
#define CRUMB_GPU_DEVICE_CUDA_BUSY_H_

#include <cstdint>

#include "gpu/device/stream_queue.h"

namespace crumb {

// `blocks` blocks of 256 threads, `steps` multiply-adds in each; `sink` is one float of device
// memory that is written only if arithmetic breaks down. Does not wait.
absl::Status LaunchBusy(uint32_t blocks, uint64_t steps, float* sink, StreamHandle stream);

}  // namespace crumb

#endif  // CRUMB_GPU_DEVICE_CUDA_BUSY_H_
