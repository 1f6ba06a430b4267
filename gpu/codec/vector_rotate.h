// Rows of a head into the rotated frame by vector kernels: y = bf16(bf16(x - base) R). On the
// caller's scratch; any thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_ROTATE_H_
#define CRUMB_GPU_CODEC_VECTOR_ROTATE_H_

#include <cstdint>

#include "gpu/codec/vector_plan.h"
#include "gpu/codec/vector_work.h"

namespace crumb {

struct VectorRotation {
  const VectorKernels* kernels = nullptr;
  const PackedRotation* rotation = nullptr;  // null: none
  const float* base = nullptr;               // null: zero
  uint32_t rows = 0, dim = 0;
};

// The rotated rows of `x` ([rows][dim] BF16): in work->rotated, in work->centred, or `x` itself
// where there is nothing to do. Null: some centred value is outside what the kernels take.
const uint16_t* RotateRows(const VectorRotation& job, const uint16_t* x, VectorWork* work);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_ROTATE_H_
