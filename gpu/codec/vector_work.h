// Working memory of the vector backends: rows as BF16, and one group of sixteen rows across lanes.
// One thread at a time.
#ifndef CRUMB_GPU_CODEC_VECTOR_WORK_H_
#define CRUMB_GPU_CODEC_VECTOR_WORK_H_

#include <cstddef>
#include <cstdint>

#include "gpu/codec/line_vector.h"
#include "gpu/codec/vector_kernels.h"

namespace crumb {

inline constexpr size_t kUnpackStep = 8;  // elements that share a scale, at least

struct VectorWork {
  void Reserve(size_t rows, size_t dim) {
    for (LineVector<uint16_t>* v : {&centred, &rotated, &retry}) v->Grow(rows * dim);
    for (LineVector<float>* v : {&row_scale, &row_zero}) v->Grow(rows * dim / kUnpackStep);
    packed.Grow(rows * dim);
    pairs.Grow(dim / 2 * kGroupRows);
    for (LineVector<float>* v : {&y, &along, &rest}) v->Grow(dim * kGroupRows);
    for (LineVector<uint8_t>* v : {&codes, &best_codes, &pack}) v->Grow(dim * kGroupRows);
    for (LineVector<float>* v : {&range, &scale, &zero, &stored_scale, &stored_zero}) {
      v->Grow(dim * kGroupRows);
    }
    meta.Grow(dim * kGroupRows);
  }

  // [rows][dim] BF16
  LineVector<uint16_t> centred;
  LineVector<uint16_t> rotated;
  LineVector<uint16_t> retry;
  LineVector<uint8_t> packed;   // code rows of a trial
  LineVector<float> row_scale;  // [rows][scales per row]
  LineVector<float> row_zero;
  // One group.
  LineVector<uint32_t> pairs;
  LineVector<float> y, along, rest;
  LineVector<uint8_t> codes, best_codes, pack;
  // [groups of elements][16]
  LineVector<float> range, scale, zero, stored_scale, stored_zero;
  LineVector<uint32_t> meta;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_WORK_H_
