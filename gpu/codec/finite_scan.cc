// Scan for NaN and Inf: all-ones exponents of 16-bit floats.
#include "gpu/codec/finite_scan.h"

#include <cstring>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

// All ones in the exponent field; 0 for what is not looked into.
uint16_t ExponentOf(RawDtype dtype) {
  if (dtype == RawDtype::kBf16) return 0x7f80;
  return dtype == RawDtype::kFp16 ? 0x7c00 : 0;
}

// Four elements at a time: an exponent field of all ones, taken from all ones, is zero, and one
// less than zero sets the highest bit of its lane; no other lane can, as none is above 0x7f80. (A
// borrow spoils the lanes above, but then the answer is settled.)
bool Finite(const uint8_t* data, size_t elements, uint16_t exponent) {
  constexpr uint64_t kOnes = 0x0001000100010001;
  constexpr size_t kWords = 8;
  const uint64_t mask = kOnes * exponent;
  uint64_t bad = 0;
  size_t i = 0;
  for (; i + 4 * kWords <= elements; i += 4 * kWords) {
    uint64_t words[kWords];
    std::memcpy(words, data + 2 * i, sizeof(words));
    for (const uint64_t word : words) bad |= ((word & mask) ^ mask) - kOnes;
  }
  for (; i < elements; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    if ((bits & exponent) == exponent) return false;
  }
  return (bad & (kOnes << 15)) == 0;
}

}  // namespace

bool AllFinite(Bytes raw, RawDtype dtype) {
  const uint16_t exponent = ExponentOf(dtype);
  return exponent == 0 || Finite(raw.data(), raw.size() / sizeof(uint16_t), exponent);
}

std::optional<ElementPlace> FindNonFinite(const PayloadLayout& layout, RawDtype dtype, Bytes raw,
                                          uint32_t tokens) {
  CRUMB_CHECK(raw.size() == layout.raw_bytes() && tokens <= layout.page_tokens());
  const uint16_t exponent = ExponentOf(dtype);
  if (exponent == 0) return std::nullopt;
  for (const TensorLayout& tensor : layout.tensors()) {
    for (uint32_t head = 0; head < tensor.heads; ++head) {
      const uint8_t* block = raw.data() + tensor.raw_offset + head * tensor.raw_head_bytes;
      if (Finite(block, size_t{tokens} * tensor.dim, exponent)) continue;
      uint32_t token = 0;
      while (Finite(block + size_t{token} * tensor.raw_row_bytes, tensor.dim, exponent)) ++token;
      return ElementPlace{tensor.layer_id, tensor.is_v, head, token};
    }
  }
  return std::nullopt;
}

}  // namespace crumb
