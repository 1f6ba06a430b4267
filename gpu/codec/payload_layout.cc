// Derives section offsets from a part and a descriptor. Control path; any thread.
#include "gpu/codec/payload_layout.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "gpu/codec/kind_traits.h"

namespace crumb {
namespace {

constexpr uint64_t Align(uint64_t bytes) {
  return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

template <typename... Parts>
absl::Status Refuse(const TensorLayout& tensor, const Parts&... parts) {
  return absl::FailedPreconditionError(
      absl::StrCat("layer ", tensor.layer_id, tensor.is_v ? " V: " : " K: ", parts...));
}

absl::Status CheckTensor(const TensorLayout& tensor, const CodecDescriptor& d, RawDtype dtype) {
  if (dtype != RawDtype::kBf16) {
    return Refuse(tensor, "dtype ", ToString(dtype), " cannot be packed; use codec raw");
  }
  if (tensor.dim == 0) {
    return Refuse(tensor, "no elements (an MLA or opaque layer); use codec raw");
  }
  if (tensor.dim % 4 != 0) {
    return Refuse(tensor, "head dim ", tensor.dim, " is not a multiple of 4; use codec raw");
  }
  if (d.group != 0 && tensor.dim % d.group != 0) {
    return Refuse(tensor, "group ", d.group, " does not divide head dim ", tensor.dim,
                  "; use a divisor, or 0 for the whole row");
  }
  return absl::OkStatus();
}

uint32_t MetaRowBytes(MetaForm meta, uint32_t groups) {
  switch (meta) {
    case MetaForm::kByte:
      return 2;
    case MetaForm::kBf16:
      return 4 * groups;
    case MetaForm::kFp32:
      return 8 * groups;
    case MetaForm::kNone:
      break;
  }
  return 0;
}

struct HeadBlock {
  uint64_t meta_offset;
  uint64_t side_offset;
  uint64_t bytes;
};

// Fills the packed form of one tensor; offsets within a head's block in 64 bits.
HeadBlock PlaceSections(const CodecDescriptor& d, uint32_t page_tokens, TensorLayout* tensor) {
  const KindTraits& traits = TraitsOf(d.kind);
  tensor->pack = {tensor->dim, tensor->is_v ? traits.bits_v : traits.bits_k, d.packing};
  tensor->groups = d.group == 0 ? 1 : tensor->dim / d.group;
  tensor->code_row_bytes = PackedRowBytes(tensor->pack);
  tensor->meta_row_bytes = MetaRowBytes(d.meta, tensor->groups);
  const bool page_mean =
      d.centring == Centring::kPageMean && !tensor->is_v && page_tokens >= kPageMeanTokensMin;
  tensor->side_bytes = page_mean ? tensor->dim + 2 : 0;
  HeadBlock block;
  block.meta_offset = Align(uint64_t{page_tokens} * tensor->code_row_bytes);
  block.side_offset = Align(block.meta_offset + uint64_t{page_tokens} * tensor->meta_row_bytes);
  block.bytes = Align(block.side_offset + tensor->side_bytes);
  return block;
}

// Limits of a Layout, checked again because offsets below rely on them.
bool InRange(const PartShape& shape) {
  if (shape.page_tokens == 0 || shape.page_tokens > kPageTokensMax) return false;
  if (shape.layers.empty() || shape.layers.size() > kLayersMax) return false;
  for (const LayerShape& layer : shape.layers) {
    if (layer.heads == 0 || layer.heads > kHeadsMax) return false;
    if (layer.k_dim > kHeadDimMax || layer.v_dim > kHeadDimMax) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<PayloadLayout> PayloadLayout::Make(const PartShape& shape,
                                                  const CodecDescriptor& descriptor) {
  CRUMB_CHECK(descriptor.Check().ok());
  if (!InRange(shape)) {
    return absl::FailedPreconditionError(
        "part shape is out of range: tokens, layers, heads or dims are zero or too many");
  }
  const bool raw = descriptor.kind == CodecKind::kRaw;
  PayloadLayout layout;
  layout.page_tokens_ = shape.page_tokens;
  uint64_t raw_offset = 0;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    for (const bool is_v : {false, true}) {
      TensorLayout tensor;
      tensor.layer_index = i;
      tensor.layer_id = layer.layer_id;
      tensor.is_v = is_v;
      tensor.head_first = layer.head_first;
      tensor.heads = layer.heads;
      tensor.dim = is_v ? layer.v_dim : layer.k_dim;
      tensor.raw_offset = raw_offset;
      tensor.raw_row_bytes = tensor.dim * DtypeBytes(shape.dtype);
      tensor.raw_head_bytes = uint64_t{shape.page_tokens} * tensor.raw_row_bytes;
      raw_offset += tensor.raw_head_bytes * tensor.heads;
      uint64_t head_bytes = tensor.raw_head_bytes;
      if (!raw) {
        CRUMB_TRY(CheckTensor(tensor, descriptor, shape.dtype));
        const HeadBlock block = PlaceSections(descriptor, shape.page_tokens, &tensor);
        tensor.meta_offset = static_cast<uint32_t>(block.meta_offset);
        tensor.side_offset = static_cast<uint32_t>(block.side_offset);
        head_bytes = block.bytes;
      }
      tensor.offset = static_cast<uint32_t>(offset);
      tensor.head_bytes = static_cast<uint32_t>(head_bytes);
      offset += head_bytes * tensor.heads;
      if (raw_offset > kRawPageBytesMax || offset > std::numeric_limits<uint32_t>::max()) {
        return Refuse(tensor, "the page grows past ", kRawPageBytesMax,
                      " bytes; cut it into parts");
      }
      layout.tensors_.push_back(tensor);
    }
  }
  if (raw_offset == 0 || raw_offset != shape.raw_bytes) {
    return absl::FailedPreconditionError(absl::StrCat("part shape is inconsistent: ", raw_offset,
                                                      " raw bytes by its layers, ", shape.raw_bytes,
                                                      " named"));
  }
  layout.payload_bytes_ = static_cast<uint32_t>(offset);
  layout.raw_bytes_ = raw_offset;
  return layout;
}

}  // namespace crumb
