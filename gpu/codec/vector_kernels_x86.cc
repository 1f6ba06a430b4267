// Which kernels this x86 processor runs, by cpuid and by the register state that the operating
// system saves. Any thread.
#include "gpu/codec/codec_backend.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {

const VectorKernels* KernelsOf(CodecBackend backend) {
  // WHY the builtins: they look at XCR0 too, so registers that the system does not save are not
  // used.
  __builtin_cpu_init();
  if (backend == CodecBackend::kAvx512) {
    const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("fma");
    return runs ? &kAvx512Kernels : nullptr;
  }
  if (backend == CodecBackend::kAvx2) {
    const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return runs ? &kAvx2Kernels : nullptr;
  }
  return nullptr;
}

}  // namespace crumb
