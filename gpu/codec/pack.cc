// Packing of codes, one row at a time. Plain loops over bytes; any thread.
#include "gpu/codec/pack.h"

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

// Codes that share one byte.
uint32_t PerByte(uint32_t bits) { return bits == 4 ? 2 : 4; }

uint8_t Byte(uint32_t value) { return static_cast<uint8_t>(value); }

// `stride` between codes of one byte, `step` between the first codes of neighbouring bytes.
struct Plane {
  uint32_t bytes;
  uint32_t step;
  uint32_t stride;
};

Plane PlaneOf(const PackForm& form) {
  const uint32_t per_byte = PerByte(form.bits);
  const uint32_t bytes = form.dim / per_byte;
  if (form.packing == Packing::kInterleaved) return {bytes, per_byte, 1};
  return {bytes, 1, bytes};
}

void PackPlane2(const Plane& p, const uint8_t* codes, uint8_t* bytes) {
  for (uint32_t j = 0; j < p.bytes; ++j) {
    const uint8_t* q = codes + size_t{j} * p.step;
    bytes[j] = Byte((q[0] & 3u) | (q[p.stride] & 3u) << 2 | (q[2 * p.stride] & 3u) << 4 |
                    (q[3 * p.stride] & 3u) << 6);
  }
}

void PackPlane4(const Plane& p, const uint8_t* codes, uint8_t* bytes) {
  for (uint32_t j = 0; j < p.bytes; ++j) {
    const uint8_t* q = codes + size_t{j} * p.step;
    bytes[j] = Byte((q[0] & 15u) | (q[p.stride] & 15u) << 4);
  }
}

void UnpackPlane2(const Plane& p, const uint8_t* bytes, uint8_t* codes) {
  for (uint32_t j = 0; j < p.bytes; ++j) {
    uint8_t* q = codes + size_t{j} * p.step;
    q[0] = Byte(bytes[j] & 3u);
    q[p.stride] = Byte(bytes[j] >> 2 & 3u);
    q[2 * p.stride] = Byte(bytes[j] >> 4 & 3u);
    q[3 * p.stride] = Byte(bytes[j] >> 6);
  }
}

void UnpackPlane4(const Plane& p, const uint8_t* bytes, uint8_t* codes) {
  for (uint32_t j = 0; j < p.bytes; ++j) {
    uint8_t* q = codes + size_t{j} * p.step;
    q[0] = Byte(bytes[j] & 15u);
    q[p.stride] = Byte(bytes[j] >> 4);
  }
}

void CheckForm(const PackForm& form, size_t codes, size_t bytes) {
  CRUMB_CHECK(form.dim % 4 == 0 && form.bits >= 2 && form.bits <= 4);
  CRUMB_CHECK(form.bits != 3 || form.packing == Packing::kPlanar);
  CRUMB_CHECK(codes == form.dim && bytes == PackedRowBytes(form));
}

}  // namespace

uint32_t PackedRowBytes(const PackForm& form) {
  switch (form.bits) {
    case 2:
      return form.dim / 4;
    case 3:
      return form.dim / 4 + (form.dim + 7) / 8;
    default:
      return form.dim / 2;
  }
}

void PackRow(const PackForm& form, Bytes codes, MutableBytes bytes) {
  CheckForm(form, codes.size(), bytes.size());
  const Plane plane = PlaneOf(form);
  if (form.bits == 4) {
    PackPlane4(plane, codes.data(), bytes.data());
    return;
  }
  PackPlane2(plane, codes.data(), bytes.data());
  if (form.bits == 2) return;
  uint8_t* top = bytes.data() + plane.bytes;
  for (uint32_t j = 0; j < (form.dim + 7) / 8; ++j) top[j] = 0;
  for (uint32_t i = 0; i < form.dim; ++i) {
    top[i / 8] = Byte(top[i / 8] | (codes[i] >> 2 & 1u) << (i % 8));
  }
}

void UnpackRow(const PackForm& form, Bytes bytes, MutableBytes codes) {
  CheckForm(form, codes.size(), bytes.size());
  const Plane plane = PlaneOf(form);
  if (form.bits == 4) {
    UnpackPlane4(plane, bytes.data(), codes.data());
    return;
  }
  UnpackPlane2(plane, bytes.data(), codes.data());
  if (form.bits == 2) return;
  const uint8_t* top = bytes.data() + plane.bytes;
  for (uint32_t i = 0; i < form.dim; ++i) {
    codes[i] = Byte(codes[i] | (top[i / 8] >> (i % 8) & 1u) << 2);
  }
}

}  // namespace crumb
