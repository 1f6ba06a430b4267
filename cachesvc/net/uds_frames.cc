// Fixed layouts, written and read field by field. Any thread.
#include "cachesvc/net/uds_frames.h"

#include <cstring>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

template <typename T>
void Put(T value, size_t* at, uint8_t* out) {
  std::memcpy(out + *at, &value, sizeof(value));
  *at += sizeof(value);
}

constexpr size_t kHandleBytes = 64;  // of a GpuShare, at its start

void PutBytes(Bytes bytes, size_t* at, uint8_t* out) {
  std::memcpy(out + *at, bytes.data(), bytes.size());
  *at += bytes.size();
}

bool HasValue(UdsFrameKind kind) {
  return kind == UdsFrameKind::kLend || kind == UdsFrameKind::kLent;
}

}  // namespace

bool ParseUdsFrame(Bytes packet, UdsFrame* out) {
  ByteReader reader(packet);
  const auto magic = reader.Read<uint32_t>();
  const auto version = reader.Read<uint16_t>();
  const auto kind = reader.Read<uint16_t>();
  const auto file = reader.Read<uint64_t>();
  if (!reader.ok() || magic != kUdsMagic || version != kUdsVersion) return false;
  *out = UdsFrame{.kind = static_cast<UdsFrameKind>(kind), .file = file, .value = 0, .message = {}};
  switch (out->kind) {
    case UdsFrameKind::kMessage:
      out->message = packet.subspan(kUdsHeaderBytes);
      return file == 0 && !out->message.empty() && out->message.size() <= kWireMessageBytesMax;
    case UdsFrameKind::kLend:
    case UdsFrameKind::kLent:
      out->value = reader.Read<uint64_t>();
      return file != 0 && reader.done();
    case UdsFrameKind::kUnlend:
      return file != 0 && reader.done();
    case UdsFrameKind::kLendGpu: {
      if (packet.size() != kUdsLendGpuBytes) return false;
      out->share = packet.subspan(kUdsHeaderBytes);
      UdsGpuShare share;
      if (file == 0 || !ParseUdsGpuShare(out->share, &share)) return false;
      out->value = share.bytes;
      return true;
    }
  }
  return false;
}

UdsFrameBytes MakeUdsFrame(const UdsFrame& frame) {
  UdsFrameBytes out;
  Put(kUdsMagic, &out.size, out.bytes.data());
  Put(kUdsVersion, &out.size, out.bytes.data());
  Put(static_cast<uint16_t>(frame.kind), &out.size, out.bytes.data());
  Put(frame.file, &out.size, out.bytes.data());
  if (HasValue(frame.kind)) Put(frame.value, &out.size, out.bytes.data());
  if (frame.kind != UdsFrameKind::kLendGpu) return out;
  CRUMB_CHECK(frame.share.size() == kUdsGpuShareBytes);
  PutBytes(frame.share, &out.size, out.bytes.data());
  return out;
}

bool ParseUdsGpuShare(Bytes share, UdsGpuShare* out) {
  ByteReader reader(share);
  (void)reader.ReadArray<kHandleBytes>();
  out->device = reader.ReadArray<16>();
  out->allocation_bytes = reader.Read<uint64_t>();
  out->offset = reader.Read<uint64_t>();
  out->bytes = reader.Read<uint64_t>();
  return reader.done() && out->bytes != 0 && out->offset < out->allocation_bytes &&
         out->bytes <= out->allocation_bytes - out->offset;
}

std::array<uint8_t, kUdsGpuShareBytes> WholeUdsGpuShare(Bytes share) {
  UdsGpuShare parts;
  CRUMB_CHECK(ParseUdsGpuShare(share, &parts));
  std::array<uint8_t, kUdsGpuShareBytes> out;
  std::memcpy(out.data(), share.data(), share.size());
  size_t at = kUdsGpuShareBytes - 2 * sizeof(uint64_t);
  Put(uint64_t{0}, &at, out.data());
  Put(parts.allocation_bytes, &at, out.data());
  return out;
}

std::array<uint8_t, kUdsRkeyBytes> MakeUdsRkey(const UdsRkey& rkey) {
  std::array<uint8_t, kUdsRkeyBytes> out{};
  size_t at = 0;
  Put(rkey.file, &at, out.data());
  Put(rkey.offset, &at, out.data());
  return out;
}

bool ParseUdsRkey(Bytes key, UdsRkey* out) {
  ByteReader reader(key);
  out->file = reader.Read<uint64_t>();
  out->offset = reader.Read<uint64_t>();
  return reader.done() && out->file != 0;
}

}  // namespace crumb
