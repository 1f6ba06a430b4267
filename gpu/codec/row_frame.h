// Rows between the frame they were put in and the rotated one, in the steps that the format fixes:
// in  y = bf16(bf16(x - base) R), out x = bf16(bf16(y R^T) + base); without a base or a matrix its
// step falls away. Pure functions on the caller's memory; any thread.
#ifndef CRUMB_GPU_CODEC_ROW_FRAME_H_
#define CRUMB_GPU_CODEC_ROW_FRAME_H_

#include <cstddef>

#include "absl/types/span.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct RowFrame {
  size_t dim = 0;
  absl::Span<const double> matrix;  // expanded for the direction wanted; empty: none
  absl::Span<const float> base;     // empty: zero
};

// BF16 bytes to floats and back (bytes.size() == 2 * rows.size()).
void LoadRows(Bytes bytes, absl::Span<float> rows);
void StoreRows(absl::Span<const float> rows, MutableBytes bytes);

// False if some value did not fit into BF16 and was replaced by the largest that does. x and y may
// be the same rows.
bool ToRotated(const RowFrame& frame, absl::Span<const float> x, absl::Span<float> y,
               absl::Span<double> work);
// The inverse rotation alone, in place.
void Unrotate(const RowFrame& frame, absl::Span<float> rows, absl::Span<double> work);
// row = bf16(row + base).
void AddBase(absl::Span<const float> base, absl::Span<float> row);

double SumOfSquares(absl::Span<const float> row);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROW_FRAME_H_
