// Products of sixteen rows with L, which lies in panels of eight columns: errors pushed into the
// coordinates still to come, and L^T x for the gain. Templates over the words of one instruction
// set; included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_METRIC_H_
#define CRUMB_GPU_CODEC_VECTOR_METRIC_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// Row k of the panel that holds columns first ..., from column first on. A panel of eight columns
// from p on has the rows p ... dim - 1.
inline const float* PanelRow(const float* lower, uint32_t dim, uint32_t first, uint32_t k) {
  const size_t b = first / kMetricPanel;
  const size_t start = kMetricPanel * (b * dim - kMetricPanel * (b * (b - 1) / 2));
  return lower + start + (k - b * kMetricPanel) * kMetricPanel + first % kMetricPanel;
}

// Adds what rows first_row ... dim - 1 of L push into a block of columns.
template <class O>
[[gnu::always_inline]] inline void PushErrors(const float* lower, const float* errors, uint32_t dim,
                                              uint32_t first, uint32_t first_row, uint32_t h,
                                              typename O::F (&u)[O::kRowGroups][O::kColumns]) {
  for (uint32_t k = dim; k-- > first_row;) {
    const float* row = PanelRow(lower, dim, first, k);
    typename O::F error[O::kRowGroups];
    for (uint32_t r = 0; r < O::kRowGroups; ++r) {
      error[r] = O::Load(errors + size_t{k} * kGroupRows + h + r * O::kLanes);
    }
    for (uint32_t j = 0; j < O::kColumns; ++j) {
      const typename O::F factor = O::Set(row[j]);
      for (uint32_t r = 0; r < O::kRowGroups; ++r) u[r][j] = O::Fma(factor, error[r], u[r][j]);
    }
  }
}

template <class O>
void CrumbAlong(const CrumbAlongJob& job) {
  using F = typename O::F;
  F norm[O::kRowGroups];
  for (F& one : norm) one = O::Set(0.0f);
  for (uint32_t first = 0; first < job.dim; first += O::kColumns) {
    F sum[O::kRowGroups][O::kColumns];
    for (uint32_t r = 0; r < O::kRowGroups; ++r) {
      for (uint32_t j = 0; j < O::kColumns; ++j) {
        sum[r][j] = O::Load(job.x + size_t{first + j} * kGroupRows + r * O::kLanes);
      }
    }
    // Entries of a panel on and above the diagonal are zero.
    PushErrors<O>(job.lower, job.x, job.dim, first, first, 0, sum);
    for (uint32_t r = 0; r < O::kRowGroups; ++r) {
      for (uint32_t j = 0; j < O::kColumns; ++j) {
        const F weighed = O::Mul(sum[r][j], O::Set(job.diagonal[first + j]));
        O::Store(job.along + size_t{first + j} * kGroupRows + r * O::kLanes, sum[r][j]);
        norm[r] = O::Fma(weighed, sum[r][j], norm[r]);
      }
    }
  }
  for (uint32_t r = 0; r < O::kRowGroups; ++r) O::Store(job.norm + r * O::kLanes, norm[r]);
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_METRIC_H_
