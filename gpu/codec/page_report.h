// What an encode says of a page, between a GPU's form and the one that everybody else reads. Pure
// functions; any thread.
#ifndef CRUMB_GPU_CODEC_PAGE_REPORT_H_
#define CRUMB_GPU_CODEC_PAGE_REPORT_H_

#include "gpu/codec/cuda_params.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"

namespace crumb {

inline EncodeReport EncodeReportOf(const CudaPageReport& report, const PayloadLayout& layout) {
  EncodeReport out;
  out.fits = report.unfit == 0;
  out.error_k = report.error[0];
  out.energy_k = report.energy[0];
  out.error_v = report.error[1];
  out.energy_v = report.energy[1];
  out.rows_static = report.rows_static;
  const CudaBadPlace bad = BadPlaceOf(report);
  if (!bad.found || bad.tensor >= layout.tensors().size()) return out;
  const TensorLayout& tensor = layout.tensors()[bad.tensor];
  out.result = BlockResult::kNonFinite;
  out.bad_layer_id = tensor.layer_id;
  out.bad_is_v = tensor.is_v;
  out.bad_head = bad.head;
  out.bad_token = bad.token;
  return out;
}

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PAGE_REPORT_H_
