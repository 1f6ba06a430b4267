// Processors without vector kernels: the reference runs. Any thread.
#include "gpu/codec/codec_backend.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {

const VectorKernels* KernelsOf(CodecBackend /*backend*/) { return nullptr; }

}  // namespace crumb
