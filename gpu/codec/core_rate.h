// What one core can do: the measure that codec speeds are printed beside. Benchmarks only; any
// thread, which is busy for the time given.
#ifndef CRUMB_GPU_CODEC_CORE_RATE_H_
#define CRUMB_GPU_CODEC_CORE_RATE_H_

#include <cstdint>

#include "gpu/codec/codec_backend.h"

namespace crumb {

// Multiply-adds per second of matrix products that wait for no memory; 0: the backend has no
// instructions for them.
struct CoreRates {
  double bf16 = 0.0;
  double fp32 = 0.0;
};

// REQUIRES: the backend is supported here. The reference has no rate: all zero.
CoreRates MeasureCore(CodecBackend backend, double seconds);

// Time that this thread has had on a core, in nanoseconds: neighbours on the core do not count.
uint64_t ThreadTimeNs();

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CORE_RATE_H_
