// Scan for NaN and Inf: all-ones exponents of 16-bit floats.
#include "gpu/codec/finite_scan.h"

#include <cstring>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr uint16_t kBf16Exponent = 0x7f80;
constexpr uint16_t kFp16Exponent = 0x7c00;

bool AllFinite(const uint8_t* data, size_t elements, uint16_t exponent) {
  uint32_t bad = 0;
  for (size_t i = 0; i < elements; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    bad |= static_cast<uint32_t>((bits & exponent) == exponent);
  }
  return bad == 0;
}

}  // namespace

std::optional<ElementPlace> FindNonFinite(const PayloadLayout& layout, RawDtype dtype, Bytes raw,
                                          uint32_t tokens) {
  CRUMB_CHECK(raw.size() == layout.raw_bytes() && tokens <= layout.page_tokens());
  if (dtype != RawDtype::kBf16 && dtype != RawDtype::kFp16) return std::nullopt;
  const uint16_t exponent = dtype == RawDtype::kBf16 ? kBf16Exponent : kFp16Exponent;
  for (const TensorLayout& tensor : layout.tensors()) {
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const uint8_t* block = raw.data() + tensor.raw_offset + head * tensor.raw_head_bytes;
      if (AllFinite(block, size_t{tokens} * tensor.dim, exponent)) continue;
      uint32_t token = 0;
      while (AllFinite(block + size_t{token} * tensor.raw_row_bytes, tensor.dim, exponent)) ++token;
      return ElementPlace{tensor.layer_id, tensor.is_v, head, token};
    }
  }
  return std::nullopt;
}

}  // namespace crumb
