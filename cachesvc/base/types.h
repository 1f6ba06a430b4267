// The vocabulary that every layer shares: keys, enums and spans.
// Values here travel on the wire and on disk; their numbers never change once released.
// Any thread; no function here allocates.
#ifndef CRUMB_CACHESVC_BASE_TYPES_H_
#define CRUMB_CACHESVC_BASE_TYPES_H_

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace crumb {

using Bytes = absl::Span<const uint8_t>;
using MutableBytes = absl::Span<uint8_t>;

// First 16 bytes of the SHA-256 of an external key; made by the client.
struct Digest {
  std::array<uint8_t, 16> bytes{};
  friend auto operator<=>(const Digest&, const Digest&) = default;
};

// Name of one part of one block inside one cluster (see keys.h). Looks random: its first
// 8 bytes are a hash by themselves.
struct BlockKey {
  std::array<uint8_t, 16> bytes{};
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
  // WHY by hand: two words, where the default would call memcmp.
  friend bool operator==(const BlockKey& a, const BlockKey& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), sizeof(a.bytes)) == 0;
  }
  uint64_t prefix64() const {
    uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;  // little-endian machines only; asserted in bytes.h
  }
  bool is_zero() const { return *this == BlockKey{}; }
};

// SHA-256 of an identity's canonical form.
struct IdentityHash {
  std::array<uint8_t, 32> bytes{};
  friend auto operator<=>(const IdentityHash&, const IdentityHash&) = default;
  uint64_t prefix64() const {
    uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
};

// How many bits a page's payload keeps per element. Higher enumerator = fewer bits.
enum class Precision : uint8_t { kRaw = 0, kInt4 = 1, kK3V2 = 2, kInt2 = 3 };

// How the rows of a page were computed before they were put.
enum class Provenance : uint8_t { kPrefill = 0, kDecode = 1, kTranscoded = 2 };

// Where a page was found.
enum class Tier : uint8_t { kNone = 0, kHbm = 1, kDram = 2, kNvme = 3, kPeer = 4 };

// Outcome of one block of one request: the data path's error type. One byte, no allocation.
enum class BlockResult : uint8_t {
  kOk = 0,
  kMiss = 1,         // not here, or no longer
  kBusy = 2,         // a queue is full; try again later
  kNoSpace = 3,      // pool full of pinned pages
  kQuota = 4,        // the tenant's byte quota is used up
  kTimeout = 5,      // the deadline passed
  kInvalid = 6,      // the request is malformed or out of range
  kUnavailable = 7,  // the peer is gone, or the daemon drains
  kCorrupt = 8,      // bytes did not verify (never leaves the engine on a get: it becomes kMiss)
  kIo = 9,           // a device refused (never leaves the engine on a get)
  kExists = 10,      // put: the key already holds something at least as good; a success
  kCancelled = 11,
  kNonFinite = 12,   // put: NaN or Inf where the layout does not allow it
  kMismatch = 13,    // packed or page form does not fit the layout or the codec
  kNotDurable = 14,  // put: stored, but the durable write asked for did not happen
};
inline constexpr int kBlockResultCount = 15;

const char* ToString(Precision precision);
const char* ToString(Provenance provenance);
const char* ToString(Tier tier);
const char* ToString(BlockResult result);

// In what form a get wants its page, or a put brings it.
enum class PageForm : uint8_t {
  kRaw = 0,     // raw dtype of the layout (bf16 ...), original frame
  kPacked = 1,  // payload only, as the codec descriptor says
  kPage = 2,    // 128-byte header + payload
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return static_cast<size_t>(key.prefix64()); }
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_TYPES_H_
