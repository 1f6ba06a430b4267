// Codes of sixteen crumb rows at once: error feedback along L in panels of eight coordinates, and
// L^T x for the gain. FP32; agrees with the scalar search as docs/codec.md says. Templates over the
// words of one instruction set; included by the kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_
#define CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"

namespace crumb {
namespace {

// What one pass over the coordinates of up to sixteen rows carries along. WHY in units of the
// scale, zero added: w = y / s + z, and then a code is round(w), an error w - code: two operations
// less between one coordinate and the next.
template <class O>
struct CodePass {
  using F = typename O::F;
  uint32_t h;  // first lane
  F inverse, zero, top;
  F metric_ee, metric_ye, plain_ee, plain_ye;

  F Start(F y) const { return O::Fma(y, inverse, zero); }
};

// Quantises coordinate i at target u (w plus pushed errors); returns w - code. WHY inlined by
// force: its caller keeps the targets of a whole panel in registers.
template <class O>
[[gnu::always_inline]] inline typename O::F OneCode(const CrumbCodesJob& job, uint32_t i,
                                                    typename O::F u, CodePass<O>* pass) {
  using F = typename O::F;
  const size_t at = size_t{i} * kGroupRows + pass->h;
  const F code = O::Round(O::Min(O::Max(u, O::Set(0.0f)), pass->top));
  const F y = O::Load(job.y + at);
  const F rest = O::Sub(pass->Start(y), code);
  O::StoreBytes(job.codes + at, code);
  pass->plain_ee = O::Fma(rest, rest, pass->plain_ee);
  pass->plain_ye = O::Fma(rest, y, pass->plain_ye);
  if (job.lower == nullptr) return rest;
  O::Store(job.rest + at, rest);
  const F residual = O::Sub(u, code);
  const F weighed = O::Mul(residual, O::Set(job.diagonal[i]));
  pass->metric_ee = O::Fma(weighed, residual, pass->metric_ee);
  pass->metric_ye = O::Fma(weighed, O::Load(job.along + at), pass->metric_ye);
  return rest;
}

// Where the panel of columns first ... first + 7 starts; it holds the rows first ... dim - 1.
inline size_t PanelOffset(uint32_t dim, uint32_t first) {
  const size_t b = first / kMetricPanel;
  return kMetricPanel * (b * dim - kMetricPanel * (b * (b - 1) / 2));
}

// Coordinate kColumn of a panel: its code, and its error into the panel's columns still to come.
template <class O, uint32_t kColumn>
[[gnu::always_inline]] inline void PanelStep(const CrumbCodesJob& job, const float* panel,
                                             uint32_t first, typename O::F (&u)[kMetricPanel],
                                             CodePass<O>* pass) {
  const typename O::F rest = OneCode<O>(job, first + kColumn, u[kColumn], pass);
  const float* row = panel + size_t{kColumn} * kMetricPanel;
  for (uint32_t i = 0; i < kColumn; ++i) u[i] = O::Fma(O::Set(row[i]), rest, u[i]);
}
static_assert(kMetricPanel == 8);

// Codes one after another, last coordinate first; each error is pushed along L into those to come.
template <class O>
void FeedbackCodes(const CrumbCodesJob& job, CodePass<O>* pass) {
  using F = typename O::F;
  const uint32_t h = pass->h;
  for (uint32_t end = job.dim; end != 0; end -= kMetricPanel) {
    const uint32_t first = end - kMetricPanel;
    const float* panel = job.lower + PanelOffset(job.dim, first);
    F u[kMetricPanel];
    for (uint32_t j = 0; j < kMetricPanel; ++j) {
      u[j] = pass->Start(O::Load(job.y + size_t{first + j} * kGroupRows + h));
    }
    for (uint32_t k = job.dim; k-- > end;) {
      const F rest = O::Load(job.rest + size_t{k} * kGroupRows + h);
      const float* row = panel + size_t{k - first} * kMetricPanel;
      for (uint32_t j = 0; j < kMetricPanel; ++j) u[j] = O::Fma(O::Set(row[j]), rest, u[j]);
    }
    PanelStep<O, 7>(job, panel, first, u, pass);
    PanelStep<O, 6>(job, panel, first, u, pass);
    PanelStep<O, 5>(job, panel, first, u, pass);
    PanelStep<O, 4>(job, panel, first, u, pass);
    PanelStep<O, 3>(job, panel, first, u, pass);
    PanelStep<O, 2>(job, panel, first, u, pass);
    PanelStep<O, 1>(job, panel, first, u, pass);
    PanelStep<O, 0>(job, panel, first, u, pass);
  }
}

template <class O>
void CrumbCodes(const CrumbCodesJob& job) {
  using F = typename O::F;
  const F none = O::Set(0.0f);
  for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
    const F scale = O::Load(job.scale + h);
    const F inverse = O::Div(O::Set(1.0f), scale);
    const F zero = O::Load(job.zero + h);
    CodePass<O> pass{h, inverse, zero, O::Set(job.top), none, none, none, none};
    if (job.lower != nullptr) {
      FeedbackCodes<O>(job, &pass);
    } else {
      for (uint32_t i = 0; i < job.dim; ++i) {
        OneCode<O>(job, i, pass.Start(O::Load(job.y + size_t{i} * kGroupRows + h)), &pass);
      }
    }
    const F square = O::Mul(scale, scale);
    O::Store(job.metric_ee + h, O::Mul(pass.metric_ee, square));
    O::Store(job.metric_ye + h, O::Mul(pass.metric_ye, scale));
    O::Store(job.plain_ee + h, O::Mul(pass.plain_ee, square));
    O::Store(job.plain_ye + h, O::Mul(pass.plain_ye, scale));
  }
}

template <class O>
void CrumbAlong(const CrumbAlongJob& job) {
  using F = typename O::F;
  for (uint32_t h = 0; h < kGroupRows; h += O::kLanes) {
    F norm = O::Set(0.0f);
    for (uint32_t first = 0; first < job.dim; first += kMetricPanel) {
      const float* panel = job.lower + PanelOffset(job.dim, first);
      F sum[kMetricPanel];
      for (uint32_t j = 0; j < kMetricPanel; ++j) {
        sum[j] = O::Load(job.x + size_t{first + j} * kGroupRows + h);
      }
      for (uint32_t k = first; k < job.dim; ++k) {
        const F x = O::Load(job.x + size_t{k} * kGroupRows + h);
        const float* row = panel + size_t{k - first} * kMetricPanel;
        for (uint32_t j = 0; j < kMetricPanel; ++j) sum[j] = O::Fma(O::Set(row[j]), x, sum[j]);
      }
      for (uint32_t j = 0; j < kMetricPanel; ++j) {
        O::Store(job.along + size_t{first + j} * kGroupRows + h, sum[j]);
        norm = O::Fma(O::Mul(sum[j], O::Set(job.diagonal[first + j])), sum[j], norm);
      }
    }
    O::Store(job.norm + h, norm);
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_
