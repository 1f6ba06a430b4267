// Looks for NaN and Inf in a raw page before anything else touches it: they must never reach a
// minimum, a maximum or an integer cast. Pure functions; any thread.
#ifndef CRUMB_GPU_CODEC_FINITE_SCAN_H_
#define CRUMB_GPU_CODEC_FINITE_SCAN_H_

#include <cstdint>
#include <optional>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/payload_layout.h"

namespace crumb {

struct ElementPlace {
  uint32_t layer_id = 0;
  bool is_v = false;
  uint32_t head = 0;  // within the part
  uint32_t token = 0;
};

// The first NaN or Inf among the first `tokens` rows, in the page's order. Dtypes other than bf16
// and fp16 are not looked into. REQUIRES: raw.size() == layout.raw_bytes().
std::optional<ElementPlace> FindNonFinite(const PayloadLayout& layout, RawDtype dtype, Bytes raw,
                                          uint32_t tokens);

// Whether there is none in the whole of `raw`.
bool AllFinite(Bytes raw, RawDtype dtype);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_FINITE_SCAN_H_
