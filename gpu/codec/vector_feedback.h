// Codes of sixteen crumb rows at once, with error feedback along L. FP32; agrees with the scalar
// search as docs/codec.md says. Templates over the words of one instruction set; included by the
// kernel files alone, hence the unnamed namespace.
#ifndef CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_
#define CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec/vector_kernels.h"
#include "gpu/codec/vector_metric.h"

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

// Column kColumn of a block: its codes, and their errors into the columns still to come.
template <class O, uint32_t kColumn>
[[gnu::always_inline]] inline void BlockStep(const CrumbCodesJob& job, uint32_t first,
                                             typename O::F (&u)[O::kRowGroups][O::kColumns],
                                             CodePass<O> (&pass)[O::kRowGroups]) {
  const float* row = PanelRow(job.lower, job.dim, first, first + kColumn);
  typename O::F rest[O::kRowGroups];
  for (uint32_t r = 0; r < O::kRowGroups; ++r) {
    rest[r] = OneCode<O>(job, first + kColumn, u[r][kColumn], &pass[r]);
  }
  for (uint32_t i = 0; i < kColumn; ++i) {
    const typename O::F factor = O::Set(row[i]);
    for (uint32_t r = 0; r < O::kRowGroups; ++r) u[r][i] = O::Fma(factor, rest[r], u[r][i]);
  }
}

// Codes one after another, last coordinate first; each error is pushed along L into those to come.
template <class O>
void FeedbackCodes(const CrumbCodesJob& job, CodePass<O> (&pass)[O::kRowGroups]) {
  for (uint32_t end = job.dim; end != 0; end -= O::kColumns) {
    const uint32_t first = end - O::kColumns;
    typename O::F u[O::kRowGroups][O::kColumns];
    for (uint32_t r = 0; r < O::kRowGroups; ++r) {
      for (uint32_t j = 0; j < O::kColumns; ++j) {
        u[r][j] = pass[r].Start(O::Load(job.y + size_t{first + j} * kGroupRows + pass[r].h));
      }
    }
    PushErrors<O>(job.lower, job.rest, job.dim, first, end, pass[0].h, u);
    if constexpr (O::kColumns == kMetricPanel) {
      BlockStep<O, 7>(job, first, u, pass);
      BlockStep<O, 6>(job, first, u, pass);
      BlockStep<O, 5>(job, first, u, pass);
      BlockStep<O, 4>(job, first, u, pass);
    }
    BlockStep<O, 3>(job, first, u, pass);
    BlockStep<O, 2>(job, first, u, pass);
    BlockStep<O, 1>(job, first, u, pass);
    BlockStep<O, 0>(job, first, u, pass);
  }
}

template <class O>
void CrumbCodes(const CrumbCodesJob& job) {
  using F = typename O::F;
  const F none = O::Set(0.0f);
  CodePass<O> pass[O::kRowGroups];
  for (uint32_t r = 0; r < O::kRowGroups; ++r) {
    const uint32_t h = r * O::kLanes;
    const F inverse = O::Div(O::Set(1.0f), O::Load(job.scale + h));
    pass[r] = {h, inverse, O::Load(job.zero + h), O::Set(job.top), none, none, none, none};
  }
  if (job.lower != nullptr) {
    FeedbackCodes<O>(job, pass);
  } else {
    for (uint32_t i = 0; i < job.dim; ++i) {
      for (CodePass<O>& one : pass) {
        OneCode<O>(job, i, one.Start(O::Load(job.y + size_t{i} * kGroupRows + one.h)), &one);
      }
    }
  }
  for (const CodePass<O>& one : pass) {
    const F scale = O::Load(job.scale + one.h);
    const F square = O::Mul(scale, scale);
    O::Store(job.metric_ee + one.h, O::Mul(one.metric_ee, square));
    O::Store(job.metric_ye + one.h, O::Mul(one.metric_ye, scale));
    O::Store(job.plain_ee + one.h, O::Mul(one.plain_ee, square));
    O::Store(job.plain_ye + one.h, O::Mul(one.plain_ye, scale));
  }
}

}  // namespace
}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_VECTOR_FEEDBACK_H_
