// Conversion of rows between frames. Any thread.
#include "gpu/codec/row_frame.h"

#include <cmath>
#include <cstring>

#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/rotate.h"

namespace crumb {

void LoadRows(Bytes bytes, absl::Span<float> rows) {
  CRUMB_CHECK(bytes.size() == 2 * rows.size());
  const uint8_t* in = bytes.data();
  for (size_t i = 0; i < rows.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    rows[i] = Bf16ToFloat(bits);
  }
}

void StoreRows(absl::Span<const float> rows, MutableBytes bytes) {
  CRUMB_CHECK(bytes.size() == 2 * rows.size());
  uint8_t* out = bytes.data();
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint16_t bits = FloatToBf16(rows[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

bool ToRotated(const RowFrame& frame, absl::Span<const float> x, absl::Span<float> y,
               absl::Span<double> work) {
  CRUMB_CHECK(frame.dim != 0 && x.size() % frame.dim == 0 && y.size() == x.size());
  CRUMB_CHECK(frame.base.empty() || frame.base.size() == frame.dim);
  bool fits = true;
  for (size_t row = 0; row < x.size(); row += frame.dim) {
    for (size_t i = 0; i < frame.dim; ++i) {
      if (frame.base.empty()) {
        y[row + i] = x[row + i];
        continue;
      }
      const float centred = x[row + i] - frame.base[i];
      y[row + i] = RoundToBf16(centred);
      fits &= std::isfinite(centred);
    }
  }
  if (frame.matrix.empty()) return fits;
  return MultiplyRows(y, frame.matrix, frame.dim, y, work) && fits;
}

void Unrotate(const RowFrame& frame, absl::Span<float> rows, absl::Span<double> work) {
  if (!frame.matrix.empty()) MultiplyRows(rows, frame.matrix, frame.dim, rows, work);
}

void AddBase(absl::Span<const float> base, absl::Span<float> row) {
  CRUMB_CHECK(base.size() == row.size());
  for (size_t i = 0; i < row.size(); ++i) row[i] = RoundToBf16(row[i] + base[i]);
}

double SumOfSquares(absl::Span<const float> row) {
  double sum = 0.0;
  for (const float value : row) sum += double{value} * double{value};
  return sum;
}

}  // namespace crumb
