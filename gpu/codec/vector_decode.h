// Decoding of one head's block by vector kernels: packed rows to BF16 levels, times R^T, plus the
// base. The codec says how its metadata reads. On the caller's scratch; any thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_DECODE_H_
#define CRUMB_GPU_CODEC_VECTOR_DECODE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "gpu/codec/head_codec.h"
#include "gpu/codec/vector_plan.h"

namespace crumb {

// What is added to rows after the rotation.
struct VectorBases {
  const float* base[2] = {nullptr, nullptr};  // null: nothing is
  const uint8_t* flags = nullptr;             // base[flags[2 row] >> 7] where given
};

// Whether rows with these scales and zeros stay where the kernels are exact; else the reference
// decodes.
bool ComfortableLevels(absl::Span<const float> scale, absl::Span<const float> zero);
bool ComfortableBase(absl::Span<const float> base);

// Reads scratch->vector.row_scale and row_zero of every row.
void DecodeRows(const CodecPlan& plan, const VectorPlan& vectors, const HeadDecodeJob& job,
                const VectorBases& bases, CodecScratch* scratch);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_DECODE_H_
