// How queries weigh the error of K in one head: A = R^T M R + 0.03 tr(M)/d I = L D L^T, with M the
// second moment of the post-RoPE queries and R the BF16 rotation. Encoders push rounding errors
// along L; e^T A e = sum of D_i (L^T e)_i^2. Made once on the control path; then read-only.
#ifndef CRUMB_GPU_CODEC_QUERY_METRIC_H_
#define CRUMB_GPU_CODEC_QUERY_METRIC_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/status.h"

namespace crumb {

inline constexpr double kMetricRidge = 0.03;

// One head. Empty: A = I, where no calibration exists.
struct QueryMetric {
  // L below its unit diagonal, row after row (row i has i values). WHY FP32: the encoder needs no
  // more, and a large model has hundreds of these.
  std::vector<float> lower;
  std::vector<double> diagonal;  // D

  bool empty() const { return diagonal.empty(); }
};

constexpr size_t TriangleSize(size_t dim) { return dim * (dim - 1) / 2; }

// `moment` is M, row-major [dim][dim]; all zero gives the empty metric. `rotation` is R as
// calibrated (empty: none). FAILED_PRECONDITION if A is not positive definite.
absl::StatusOr<QueryMetric> MakeQueryMetric(absl::Span<const float> moment,
                                            absl::Span<const float> rotation, size_t dim);

// A metric expanded to double for the inner loops; null pointers: A = I.
struct MetricView {
  const double* lower = nullptr;
  const double* diagonal = nullptr;
  bool identity() const { return diagonal == nullptr; }
};

// `out` holds TriangleSize(dim) doubles.
MetricView ExpandMetric(const QueryMetric& metric, absl::Span<double> out);

// out = L^T x.
void ApplyTransposed(const MetricView& metric, absl::Span<const double> x, absl::Span<double> out);

// Sum of D_i a_i b_i: the inner product in A of vectors given as L^T x.
double MetricDot(const MetricView& metric, absl::Span<const double> a, absl::Span<const double> b);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_QUERY_METRIC_H_
