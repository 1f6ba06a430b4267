// The rotation: a plain product in blocks of four rows by four columns.
#include "gpu/codec/rotate.h"

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

constexpr size_t kTile = 4;  // rows and columns at a time

// From here on a magnitude rounds past the largest finite BF16.
constexpr double kBf16Limit = 0x1.ffp127;

// out[r][c] = sum over i of block[i][r] * panel[i][c], in order of i.
void TileProduct(const double* block, const double* panel, size_t dim, double* out) {
  double sum[kTile * kTile] = {};
  for (size_t i = 0; i < dim; ++i) {
    const double* x = block + i * kTile;
    const double* m = panel + i * kTile;
    for (size_t r = 0; r < kTile; ++r) {
      for (size_t c = 0; c < kTile; ++c) sum[r * kTile + c] += x[r] * m[c];
    }
  }
  for (size_t i = 0; i < kTile * kTile; ++i) out[i] = sum[i];
}

// Transposes up to four rows into [dim][kTile]; missing rows are zero.
void LoadBlock(const float* x, size_t rows, size_t dim, double* block) {
  for (size_t i = 0; i < dim; ++i) {
    for (size_t r = 0; r < kTile; ++r)
      block[i * kTile + r] = r < rows ? double{x[r * dim + i]} : 0.0;
  }
}

}  // namespace

void ExpandMatrix(absl::Span<const float> matrix, size_t dim, RotateDirection direction,
                  absl::Span<double> out) {
  CRUMB_CHECK(dim % kTile == 0 && matrix.size() == dim * dim && out.size() >= dim * dim);
  const size_t row_step = direction == RotateDirection::kForward ? dim : 1;
  const size_t column_step = direction == RotateDirection::kForward ? 1 : dim;
  double* panel = out.data();
  for (size_t first = 0; first < dim; first += kTile) {
    for (size_t i = 0; i < dim; ++i) {
      const float* source = matrix.data() + i * row_step + first * column_step;
      for (size_t c = 0; c < kTile; ++c) *panel++ = double{RoundToBf16(source[c * column_step])};
    }
  }
}

bool MultiplyRows(absl::Span<const float> x, absl::Span<const double> expanded, size_t dim,
                  absl::Span<float> y, absl::Span<double> work) {
  CRUMB_CHECK(dim != 0 && dim % kTile == 0 && x.size() % dim == 0 && y.size() == x.size());
  CRUMB_CHECK(expanded.size() >= dim * dim && work.size() >= MultiplyWork(dim));
  double* block = work.data();
  double* sums = block + kTile * dim;
  const size_t rows = x.size() / dim;
  bool fits = true;
  for (size_t row = 0; row < rows; row += kTile) {
    const size_t count = rows - row < kTile ? rows - row : kTile;
    LoadBlock(x.data() + row * dim, count, dim, block);
    for (size_t first = 0; first < dim; first += kTile) {
      TileProduct(block, expanded.data() + first * dim, dim, sums + first * kTile);
    }
    for (size_t r = 0; r < count; ++r) {
      float* out = y.data() + (row + r) * dim;
      for (size_t i = 0; i < dim; ++i) {
        const double sum = sums[i / kTile * kTile * kTile + r * kTile + i % kTile];
        fits &= sum < kBf16Limit && sum > -kBf16Limit;
        out[i] = RoundSumToBf16(sum);
      }
    }
  }
  return fits;
}

}  // namespace crumb
