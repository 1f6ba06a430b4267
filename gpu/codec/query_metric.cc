// Metric of one head and its factors, in double. Control path, and pure functions of the encoder.
#include "gpu/codec/query_metric.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/bf16.h"

namespace crumb {
namespace {

using Matrix = std::vector<double>;  // row-major [dim][dim]

Matrix Symmetric(absl::Span<const float> moment, size_t dim) {
  Matrix out(dim * dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      out[i * dim + j] = (double{moment[i * dim + j]} + double{moment[j * dim + i]}) * 0.5;
    }
  }
  return out;
}

// R^T M R.
Matrix Conjugate(const Matrix& moment, absl::Span<const float> rotation, size_t dim) {
  Matrix r(dim * dim);
  for (size_t i = 0; i < r.size(); ++i) r[i] = double{RoundToBf16(rotation[i])};
  Matrix product(dim * dim, 0.0);  // M R
  for (size_t i = 0; i < dim; ++i) {
    for (size_t k = 0; k < dim; ++k) {
      const double factor = moment[i * dim + k];
      for (size_t j = 0; j < dim; ++j) product[i * dim + j] += factor * r[k * dim + j];
    }
  }
  Matrix out(dim * dim, 0.0);
  for (size_t k = 0; k < dim; ++k) {
    for (size_t i = 0; i < dim; ++i) {
      const double factor = r[k * dim + i];
      for (size_t j = 0; j < dim; ++j) out[i * dim + j] += factor * product[k * dim + j];
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<QueryMetric> MakeQueryMetric(absl::Span<const float> moment,
                                            absl::Span<const float> rotation, size_t dim) {
  CRUMB_CHECK(moment.size() == dim * dim && (rotation.empty() || rotation.size() == dim * dim));
  if (std::all_of(moment.begin(), moment.end(), [](float v) { return v == 0.0f; })) {
    return QueryMetric{};
  }
  Matrix a = Symmetric(moment, dim);
  if (!rotation.empty()) a = Conjugate(a, rotation, dim);
  double trace = 0.0;
  for (size_t i = 0; i < dim; ++i) trace += a[i * dim + i];

  QueryMetric metric;
  metric.lower.resize(TriangleSize(dim));
  metric.diagonal.resize(dim);
  Matrix scaled(dim, 0.0);  // row i of L D
  Matrix lower(dim * dim, 0.0);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i * dim + j];
      if (i == j) sum += kMetricRidge * trace / static_cast<double>(dim);
      for (size_t k = 0; k < j; ++k) sum -= scaled[k] * lower[j * dim + k];
      if (j < i) {
        scaled[j] = sum;
        lower[i * dim + j] = sum / metric.diagonal[j];
        continue;
      }
      if (!(sum > 0.0) || !std::isfinite(sum)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "query moment is not positive semi-definite (pivot ", sum, "); calibrate again"));
      }
      metric.diagonal[i] = sum;
    }
  }
  size_t at = 0;
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < i; ++j) metric.lower[at++] = DoubleToFloat(lower[i * dim + j]);
  }
  return metric;
}

MetricView ExpandMetric(const QueryMetric& metric, absl::Span<double> out) {
  if (metric.empty()) return {};
  CRUMB_CHECK(out.size() >= metric.lower.size());
  std::copy(metric.lower.begin(), metric.lower.end(), out.begin());
  return {out.data(), metric.diagonal.data()};
}

void ApplyTransposed(const MetricView& metric, absl::Span<const double> x, absl::Span<double> out) {
  CRUMB_CHECK(out.size() == x.size());
  std::copy(x.begin(), x.end(), out.begin());
  if (metric.identity()) return;
  const double* row = metric.lower;
  double* sums = out.data();
  for (size_t k = 0; k < x.size(); ++k) {
    const double factor = x[k];
    for (size_t j = 0; j < k; ++j) sums[j] += row[j] * factor;
    row += k;
  }
}

double MetricDot(const MetricView& metric, absl::Span<const double> a, absl::Span<const double> b) {
  CRUMB_CHECK(a.size() == b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (metric.identity() ? 1.0 : metric.diagonal[i]) * a[i] * b[i];
  }
  return sum;
}

}  // namespace crumb
