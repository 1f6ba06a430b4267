// Growth of the codecs' working memory. One thread at a time.
#include "gpu/codec/codec_scratch.h"

namespace crumb {
namespace {

template <typename T>
void Grow(std::vector<T>* v, size_t size) {
  if (v->size() < size) v->resize(size);
}

}  // namespace

void CodecScratch::Reserve(size_t rows, size_t dim) {
  for (std::vector<float>* v : {&rows_x, &rows_y, &rows_retry}) Grow(v, rows * dim);
  for (std::vector<uint8_t>* v : {&codes, &codes_retry}) Grow(v, rows * dim);
  Grow(&crumb_rows, rows);
  Grow(&crumb_trials, rows);
  Grow(&row_errors, rows);
  Grow(&retry, rows);
  for (std::vector<float>* v : {&base_static, &base_page, &row_work}) Grow(v, dim);
  Grow(&mean, dim);
  Grow(&mean8, dim);
  Grow(&multiply_work, MultiplyWork(dim));
  Grow(&metric_lower, TriangleSize(dim));
  vector.Reserve(rows, dim);
}

absl::Span<const double> CodecScratch::Expanded(absl::Span<const float> matrix, size_t dim,
                                                RotateDirection direction) {
  if (matrix.empty()) return {};
  if (expanded_from_ != matrix.data() || expanded_direction_ != direction) {
    Grow(&expanded_, dim * dim);
    ExpandMatrix(matrix, dim, direction, absl::MakeSpan(expanded_));
    expanded_from_ = matrix.data();
    expanded_direction_ = direction;
  }
  return absl::MakeConstSpan(expanded_).first(dim * dim);
}

}  // namespace crumb
