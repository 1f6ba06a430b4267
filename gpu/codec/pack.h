// Codes of one row to bytes and back. Planar: code i of a quarter (2 bits) or half (4 bits) shares
// a byte with the codes of the others, so that vector decoders need no shuffles. 3 bits: the planar
// plane of the low two bits, then one bit per element, low first. Interleaved: neighbours share a
// byte, low bits first (2 and 4 bits; imported pages). Pure functions; any thread.
#ifndef CRUMB_GPU_CODEC_PACK_H_
#define CRUMB_GPU_CODEC_PACK_H_

#include <cstdint>

#include "cachesvc/base/types.h"
#include "gpu/codec/descriptor.h"

namespace crumb {

struct PackForm {
  uint32_t dim = 0;   // multiple of 4
  uint32_t bits = 0;  // 2, 3 or 4
  Packing packing = Packing::kPlanar;
};

uint32_t PackedRowBytes(const PackForm& form);

// REQUIRES: codes has `dim` values below 2^bits; bytes has PackedRowBytes.
void PackRow(const PackForm& form, Bytes codes, MutableBytes bytes);
void UnpackRow(const PackForm& form, Bytes bytes, MutableBytes codes);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_PACK_H_
