// Where everything lies in a payload: the sections that a codec descriptor fixes for a part. The
// one place that knows offsets; encoders, decoders, repackers and `page inspect` read it. Immutable
// after Make; any thread.
//
// kRaw: the canonical raw order [layer][K|V][head][token][dim], nothing else.
// Others: [layer][K|V][head] blocks, each
//   codes  [page_tokens][code_row_bytes]
//   meta   [page_tokens][meta_row_bytes]   crumb: S8, Z8; else (scale, zero) per group
//   side   [side_bytes]                    crumb with page mean, K only: dim x i8, then u16 BF16
// Every section starts at a multiple of kSectionAlignment; gaps are zero.
#ifndef CRUMB_GPU_CODEC_PAYLOAD_LAYOUT_H_
#define CRUMB_GPU_CODEC_PAYLOAD_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/pack.h"

namespace crumb {

inline constexpr uint32_t kSectionAlignment = 16;
// Below this a page mean costs too much: crumb pages keep none, and every row uses the static mean.
inline constexpr uint32_t kPageMeanTokensMin = 64;

// K or V of one layer: `heads` blocks of equal form.
struct TensorLayout {
  uint32_t layer_index = 0;  // within the part
  uint32_t layer_id = 0;     // global
  bool is_v = false;
  uint32_t head_first = 0;  // global index of the part's first kv head
  uint32_t heads = 0;
  uint32_t dim = 0;

  uint64_t raw_offset = 0;  // of head 0 in the raw page
  uint32_t raw_row_bytes = 0;
  uint64_t raw_head_bytes = 0;

  PackForm pack;        // dim, bits and packing; bits = 0 for kRaw
  uint32_t groups = 0;  // scales per row
  uint32_t offset = 0;  // of head 0 in the payload
  uint32_t head_bytes = 0;
  uint32_t code_row_bytes = 0;
  uint32_t meta_offset = 0;  // within a head's block
  uint32_t meta_row_bytes = 0;
  uint32_t side_offset = 0;
  uint32_t side_bytes = 0;
};

class PayloadLayout {
 public:
  // FAILED_PRECONDITION names layer, tensor and remedy. REQUIRES: descriptor.Check() is OK.
  static absl::StatusOr<PayloadLayout> Make(const PartShape& shape,
                                            const CodecDescriptor& descriptor);

  const std::vector<TensorLayout>& tensors() const { return tensors_; }
  uint32_t page_tokens() const { return page_tokens_; }
  uint32_t payload_bytes() const { return payload_bytes_; }
  uint64_t raw_bytes() const { return raw_bytes_; }

 private:
  PayloadLayout() = default;
  std::vector<TensorLayout> tensors_;
  uint32_t page_tokens_ = 0;
  uint32_t payload_bytes_ = 0;
  uint64_t raw_bytes_ = 0;
};

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PAYLOAD_LAYOUT_H_
