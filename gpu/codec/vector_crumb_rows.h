// The search for crumb rows by vector kernels: rotated rows in, packed code rows and CrumbRow out,
// sixteen rows at a time. On the caller's scratch; any thread.
#ifndef CRUMB_GPU_CODEC_VECTOR_CRUMB_ROWS_H_
#define CRUMB_GPU_CODEC_VECTOR_CRUMB_ROWS_H_

#include <cstdint>

#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/crumb_quantiser.h"
#include "gpu/codec/payload_layout.h"
#include "gpu/codec/vector_plan.h"

namespace crumb {

// What stays the same over the rows of a head.
struct VectorCrumbSearch {
  const VectorKernels* kernels = nullptr;
  const TensorLayout* tensor = nullptr;
  const PackedMetric* metric = nullptr;    // null: A = I
  const QueryMetric* reference = nullptr;  // the same metric for rows that the scalar code does
  Effort effort = Effort::kNormal;
  double gamma = 0.5;
};

struct VectorCrumbRows {
  const uint16_t* y = nullptr;  // [rows][dim] BF16, rotated
  uint32_t rows = 0;
  uint8_t* packed = nullptr;    // [rows][code_row_bytes]
  CrumbRow* results = nullptr;  // [rows], bit 7 of z8 clear
};

void QuantiseCrumbRows(const VectorCrumbSearch& search, const VectorCrumbRows& rows,
                       CodecScratch* scratch);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_CRUMB_ROWS_H_
