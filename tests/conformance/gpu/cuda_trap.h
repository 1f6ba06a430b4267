// A kernel that ends the context: for the test of what a lost device looks like.
#ifndef CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TRAP_H_
#define CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TRAP_H_

#include "gpu/device/stream_queue.h"

namespace crumb {

// A StreamLaunch: writes where nothing is. `arg` is not used.
absl::Status LaunchTrap(void* arg, StreamHandle stream) noexcept;

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_GPU_CUDA_TRAP_H_
