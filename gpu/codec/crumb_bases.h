// What the scalar and the vector encoder of a `crumb` head share: the bases that rows of K are
// measured from, and which rows try the static one. On the caller's scratch; any thread.
#ifndef CRUMB_GPU_CODEC_CRUMB_BASES_H_
#define CRUMB_GPU_CODEC_CRUMB_BASES_H_

#include "absl/types/span.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/codec_scratch.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/payload_layout.h"

namespace crumb {

// scratch->base_static = m (zero without one); scratch->base_page = m + bf16(p sigma), from the
// side section where there is one.
void LoadCrumbBases(const TensorLayout& tensor, absl::Span<const float> mean, Bytes side,
                    CodecScratch* scratch);

// Lists in scratch->retry the rows for which the static mean is tried, by the metric errors of
// scratch->crumb_rows; returns their number.
size_t ChooseRetries(Effort effort, size_t rows, CodecScratch* scratch);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CRUMB_BASES_H_
