// Rows times a matrix, as the format fixes it: R rounded to BF16, products and sums in double, then
// FP32, then BF16. Pure functions on the caller's memory; any thread.
#ifndef CRUMB_GPU_CODEC_ROTATE_H_
#define CRUMB_GPU_CODEC_ROTATE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace crumb {

enum class RotateDirection : uint8_t { kForward, kInverse };  // x R, or x R^T

// Expands a row-major FP32 matrix [dim][dim] for MultiplyRows: BF16-rounded, in double, transposed
// for kInverse, in panels of four columns so that the product streams through it.
// REQUIRES: dim % 4 == 0; out.size() >= dim * dim.
void ExpandMatrix(absl::Span<const float> matrix, size_t dim, RotateDirection direction,
                  absl::Span<double> out);

// y = bf16(x M), row by row; x and y may be the same rows. `work` holds MultiplyWork(dim) doubles.
// Returns false if some value did not fit into BF16 and was replaced by the largest that does.
bool MultiplyRows(absl::Span<const float> x, absl::Span<const double> expanded, size_t dim,
                  absl::Span<float> y, absl::Span<double> work);
constexpr size_t MultiplyWork(size_t dim) { return 8 * dim; }

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROTATE_H_
