// Parses and writes copy messages. Must never trust a length of theirs. No thread.
#include "cachesvc/net/copy_wire.h"

#include <algorithm>
#include <cstring>

namespace crumb {

CopyRange CopyRequest::range(uint32_t index) const {
  CopyRange range;
  std::memcpy(&range, ranges.data() + size_t{index} * sizeof(range), sizeof(range));
  return range;
}

bool ParseCopyRequest(Bytes body, CopyKind kind, CopyRequest* out) {
  if (body.size() < sizeof(CopyHeader)) return false;
  std::memcpy(&out->header, body.data(), sizeof(CopyHeader));
  const CopyHeader& header = out->header;
  if (header.count == 0 || header.count > kCopyRangesMax) return false;
  if (header.bytes == 0 || header.bytes > kCopyBytesMax) return false;
  const size_t ranges_bytes = size_t{header.count} * sizeof(CopyRange);
  const size_t payload_bytes = kind == CopyKind::kWrite ? header.bytes : 0;
  if (body.size() != sizeof(CopyHeader) + ranges_bytes + payload_bytes) return false;
  out->ranges = body.subspan(sizeof(CopyHeader), ranges_bytes);
  out->payload = body.last(payload_bytes);
  uint64_t sum = 0;  // cannot wrap: at most kCopyRangesMax times kCopyBytesMax
  for (uint32_t i = 0; i < header.count; ++i) {
    const CopyRange range = out->range(i);
    if (range.bytes == 0 || range.bytes > header.bytes) return false;
    if (range.bytes > UINT64_MAX - range.address) return false;
    sum += range.bytes;
  }
  return sum == header.bytes;
}

bool ParseCopyAnswer(Bytes body, CopyAnswer* out) {
  if (body.size() < sizeof(CopyHeader)) return false;
  std::memcpy(&out->header, body.data(), sizeof(CopyHeader));
  if (out->header.count != kCopyDone && out->header.count != kCopyRefused) return false;
  if (out->header.bytes > kCopyBytesMax) return false;
  if (out->header.count == kCopyRefused && out->header.bytes != 0) return false;
  if (body.size() != sizeof(CopyHeader) + out->header.bytes) return false;
  out->payload = body.subspan(sizeof(CopyHeader));
  return true;
}

void WriteCopyHeader(const CopyHeader& header, uint8_t* out) {
  std::memcpy(out, &header, sizeof(header));
}

void WriteCopyRange(uint32_t index, const CopyRange& range, uint8_t* out) {
  std::memcpy(out + sizeof(CopyHeader) + size_t{index} * sizeof(range), &range, sizeof(range));
}

bool PieceWalk::Next(Piece* out) {
  if (at_.bytes == 0 || at_.segment == segments_.size()) return false;
  const Segment& segment = segments_[at_.segment];
  const uint64_t bytes = std::min(at_.bytes, segment.bytes - at_.offset);
  *out = {.address = segment.address + at_.offset,
          .local_offset = segment.local_offset + at_.offset,
          .bytes = bytes,
          .region = segment.region};
  at_.bytes -= bytes;
  at_.offset += bytes;
  if (at_.offset == segment.bytes) {
    ++at_.segment;
    at_.offset = 0;
  }
  return true;
}

}  // namespace crumb
