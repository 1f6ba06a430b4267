// Sealing and checking of page headers. See docs/format.md for the table of fields.
#include "cachesvc/base/page_header.h"

#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr size_t kSealedBytes = offsetof(PageHeader, checksum);
constexpr size_t kStampBegin = offsetof(PageHeader, checksum);
constexpr size_t kStampBytes = offsetof(PageHeader, stamp_checksum) - kStampBegin;

Bytes Raw(const PageHeader& header, size_t offset, size_t size) {
  return {reinterpret_cast<const uint8_t*>(&header) + offset, size};
}

uint64_t StampChecksum(const PageHeader& header) {
  return Xxh3(Raw(header, kStampBegin, kStampBytes));
}

}  // namespace

const char* ToString(PageCheck check) {
  switch (check) {
    case PageCheck::kOk:
      return "ok";
    case PageCheck::kBadMagic:
      return "bad magic";
    case PageCheck::kBadVersion:
      return "unknown format version";
    case PageCheck::kBadField:
      return "field out of range";
    case PageCheck::kBadLength:
      return "length out of range";
    case PageCheck::kBadChecksum:
      return "checksum mismatch";
  }
  return "unknown";
}

void SealHeader(PageHeader& header, Bytes payload) {
  CRUMB_CHECK(payload.size() == header.payload_bytes);
  header.checksum = Xxh3(Raw(header, 0, kSealedBytes), payload);
}

void SealStamp(PageHeader& header) { header.stamp_checksum = StampChecksum(header); }

bool StampIsValid(const PageHeader& header) {
  return header.stamp_checksum == StampChecksum(header);
}

PageCheck CheckHeaderFields(const PageHeader& header) {
  if (header.magic != kPageMagic) return PageCheck::kBadMagic;
  if (header.format_version != kPageFormatVersion) return PageCheck::kBadVersion;
  if (header.precision > Precision::kInt2) return PageCheck::kBadField;
  if (header.provenance > Provenance::kTranscoded) return PageCheck::kBadField;
  if ((header.flags & ~kPageFlagsKnown) != 0) return PageCheck::kBadField;
  if (header.reserved0 != 0 || header.reserved1 != 0 || header.reserved2 != 0) {
    return PageCheck::kBadField;
  }
  if (header.token_count == 0 || header.payload_bytes == 0) return PageCheck::kBadLength;
  return PageCheck::kOk;
}

PageCheck CheckPage(Bytes page) {
  if (page.size() < kPageHeaderBytes) return PageCheck::kBadLength;
  const PageHeader header = LoadHeader(page);
  if (PageCheck check = CheckHeaderFields(header); check != PageCheck::kOk) return check;
  if (header.payload_bytes > page.size() - kPageHeaderBytes) return PageCheck::kBadLength;
  const Bytes payload = page.subspan(kPageHeaderBytes, header.payload_bytes);
  if (Xxh3(Raw(header, 0, kSealedBytes), payload) != header.checksum) {
    return PageCheck::kBadChecksum;
  }
  return PageCheck::kOk;
}

PageHeader LoadHeader(Bytes page) {
  CRUMB_CHECK(page.size() >= kPageHeaderBytes);
  PageHeader header;
  std::memcpy(static_cast<void*>(&header), page.data(), sizeof(header));
  return header;
}

void StoreHeader(const PageHeader& header, MutableBytes page) {
  CRUMB_CHECK(page.size() >= kPageHeaderBytes);
  std::memcpy(page.data(), &header, sizeof(header));
}

}  // namespace crumb
