// The 128 bytes in front of every page, in every tier and on every wire (docs/format.md).
// Bytes 0-95 are immutable once sealed; bytes 96-127 are the tier stamp, rewritten by each
// NVMe write. Little-endian, no padding holes. Any thread.
#ifndef CRUMB_CACHESVC_BASE_PAGE_HEADER_H_
#define CRUMB_CACHESVC_BASE_PAGE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr uint32_t kPageMagic = 0x47505243;  // "CRPG"
inline constexpr uint16_t kPageFormatVersion = 1;
inline constexpr uint32_t kPageHeaderBytes = 128;
inline constexpr uint32_t kPageAlignment = 4096;
inline constexpr uint32_t kTokenStartUnknown = 0xffffffff;

// PageHeader::flags
inline constexpr uint32_t kPageFlagRawTail = 1u << 0;    // raw because it is recent; may be demoted
inline constexpr uint32_t kPageFlagSink = 1u << 1;       // raw because it holds the first tokens
inline constexpr uint32_t kPageFlagStepped = 1u << 2;    // one step up the ladder: did not fit
inline constexpr uint32_t kPageFlagNonFinite = 1u << 3;  // raw page that holds NaN or Inf
inline constexpr uint32_t kPageFlagsKnown = 0xf;

struct PageHeader {
  uint32_t magic = kPageMagic;
  uint16_t format_version = kPageFormatVersion;
  Precision precision = Precision::kRaw;
  Provenance provenance = Provenance::kPrefill;
  uint64_t identity_prefix = 0;  // first 8 bytes of the IdentityHash
  uint64_t codec_id = 0;         // codec descriptor (gpu/codec/descriptor.h)
  BlockKey key;
  uint64_t parent_prefix = 0;  // first 8 bytes of the parent's BlockKey; 0 = none named
  uint32_t token_start = kTokenStartUnknown;
  uint16_t token_count = 0;
  uint8_t lossy_depth = 0;
  uint8_t reserved0 = 0;
  uint32_t flags = 0;
  uint32_t payload_bytes = 0;
  uint64_t tenant_prefix = 0;  // first 8 bytes of SHA-256 of the tenant's name
  uint16_t part = 0;           // layer group x head group, row-major
  uint16_t reserved1 = 0;
  uint32_t raw_bytes = 0;  // payload length of the same page stored raw
  uint64_t reserved2 = 0;
  uint64_t checksum = 0;  // XXH3-64 of bytes 0-87 and the payload
  // --- tier stamp ---
  uint32_t segment = 0;
  uint32_t generation = 0;
  uint64_t log_sequence = 0;
  uint64_t placement = 0;       // says that the log put this record here (docs/storage.md)
  uint64_t stamp_checksum = 0;  // XXH3-64 of bytes 88-119
};
static_assert(sizeof(PageHeader) == kPageHeaderBytes);
static_assert(std::is_trivially_copyable_v<PageHeader>);
static_assert(offsetof(PageHeader, key) == 24);
static_assert(offsetof(PageHeader, token_start) == 48);
static_assert(offsetof(PageHeader, payload_bytes) == 60);
static_assert(offsetof(PageHeader, tenant_prefix) == 64);
static_assert(offsetof(PageHeader, checksum) == 88);
static_assert(offsetof(PageHeader, segment) == 96);
static_assert(offsetof(PageHeader, stamp_checksum) == 120);

// Bytes that a page takes in a slot: header + payload, rounded up to kPageAlignment.
constexpr uint64_t PageSlotBytes(uint64_t payload_bytes) {
  return (kPageHeaderBytes + payload_bytes + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
}

// Sets `checksum` from the header's fields and the payload. REQUIRES: payload.size() ==
// payload_bytes.
void SealHeader(PageHeader& header, Bytes payload);
// Fills the stamp's checksum. REQUIRES: the header is sealed.
void SealStamp(PageHeader& header);

enum class PageCheck : uint8_t { kOk, kBadMagic, kBadVersion, kBadField, kBadLength, kBadChecksum };
const char* ToString(PageCheck check);

// Verifies a page of unknown origin: `page` is header + payload (and maybe padding after it).
// Checks every field's range before it is used; reads nothing outside `page`.
PageCheck CheckPage(Bytes page);
// The header's own fields only (no checksum over the payload).
PageCheck CheckHeaderFields(const PageHeader& header);
bool StampIsValid(const PageHeader& header);

// Copies the header out of the first 128 bytes. REQUIRES: page.size() >= kPageHeaderBytes.
PageHeader LoadHeader(Bytes page);
void StoreHeader(const PageHeader& header, MutableBytes page);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_PAGE_HEADER_H_
