// Messages of the data plane (UCX active messages now, unix sockets later). Fixed little-endian
// layouts, versioned; golden files in tests/golden. PROMISE: Parse* check every length and range
// before use and never read past the message; allocation-free views into the message.
#ifndef CRUMB_CACHESVC_BASE_WIRE_H_
#define CRUMB_CACHESVC_BASE_WIRE_H_

#include <cstdint>

#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr uint32_t kWireMagic = 0x4d425243;  // "CRBM"
inline constexpr uint16_t kWireVersion = 1;
inline constexpr uint32_t kBlocksPerRequestMax = 256;
inline constexpr uint32_t kSlotsPerBlockMax = 64;
inline constexpr uint32_t kWireMessageBytesMax = 128 * 1024;

enum class WireType : uint16_t {
  kPut = 1,
  kGet = 2,
  kLookup = 3,
  kDelete = 4,
  kCancel = 5,
  kReply = 6,
  kHello = 7,     // first message of a peer: names its session
  kGoodbye = 8,   // orderly end of a peer
  kPrefetch = 9,  // pages that will be asked for soon: raise them from NVMe to memory
};

// WireHeader::flags
inline constexpr uint16_t kWireFlagDurable = 1 << 0;    // put: answer after the durable write
inline constexpr uint16_t kWireFlagStopAtGap = 1 << 1;  // lookup: stop at the first miss
inline constexpr uint16_t kWireFlagWait = 1 << 2;       // get: park until a put commits
inline constexpr uint16_t kWireFlagsKnown = 0x7;

struct WireHeader {  // 64 bytes, in front of every message
  uint32_t magic = kWireMagic;
  uint16_t version = kWireVersion;
  WireType type = WireType::kPut;
  uint32_t message_bytes = 0;  // header included
  uint16_t flags = 0;
  uint16_t block_count = 0;
  uint64_t request_id = 0;   // chosen by the client, unique among its requests in flight
  uint64_t session_id = 0;   // from Hello over gRPC
  uint32_t deadline_us = 0;  // from receipt; 0 = the daemon's default
  uint32_t layout_handle = 0;
  uint32_t region_set = 0;
  uint16_t slots_per_block = 0;  // per WireBlock, u32 each, right behind it
  PageForm form = PageForm::kRaw;
  uint8_t reserved0 = 0;
  // Put, get: what the word that the peer lends with its GPU memory must have reached before that
  // is touched; 0: nothing.
  uint64_t gpu_ticket = 0;
  uint64_t checksum = 0;  // XXH3-64 of the message with this field zero
};
static_assert(sizeof(WireHeader) == 64);

struct WireBlock {  // 48 bytes, then slots_per_block x u32
  Digest digest;
  Digest parent;             // all zero = none named
  uint32_t token_start = 0;  // kTokenStartUnknown = unknown
  uint16_t token_count = 0;  // 0 = a full page
  uint16_t part = 0;
  Provenance provenance = Provenance::kPrefill;
  uint8_t reserved0 = 0;
  uint16_t codec_tag = 0;    // put of packed pages: CodecTag of what packed them; 0 = unsaid
  uint32_t value_bytes = 0;  // packed and page forms: length at the slot; raw: 0
};
static_assert(sizeof(WireBlock) == 48);

// Tells the codecs of one layout apart. Not 0.
constexpr uint16_t CodecTag(uint64_t codec_id) { return static_cast<uint16_t>(codec_id | 1); }

struct WireBlockReply {  // 16 bytes each, behind the header of a reply
  BlockResult result = BlockResult::kMiss;
  Tier tier = Tier::kNone;  // prefetch: where the page is now, also where it was not raised
  Precision precision = Precision::kRaw;
  uint8_t lossy_depth = 0;
  uint32_t value_bytes = 0;  // bytes written at the slot
  // XXH3-64 of the value as delivered (packed, page and raw forms). kNonFinite: where the first
  // NaN or Inf is, as PackPlace has it. Look-ups: how many tokens at the end of the prefix that
  // this page completes are raw.
  uint64_t checksum = 0;
};
static_assert(sizeof(WireBlockReply) == 16);

// Where in a page something is: layer id, tensor, head (from the part's first) and token.
struct PagePlace {
  uint32_t layer_id = 0;
  bool is_v = false;
  uint16_t head = 0;
  uint16_t token = 0;
};
constexpr uint64_t PackPlace(const PagePlace& place) {
  return uint64_t{place.layer_id} << 32 | (place.is_v ? 1ull << 31 : 0) |
         uint64_t{place.head & 0x7fffu} << 16 | place.token;
}
constexpr PagePlace UnpackPlace(uint64_t packed) {
  return {.layer_id = static_cast<uint32_t>(packed >> 32),
          .is_v = (packed >> 31 & 1) != 0,
          .head = static_cast<uint16_t>(packed >> 16 & 0x7fff),
          .token = static_cast<uint16_t>(packed & 0xffff)};
}

// A parsed request: views into the message, valid while the message is.
struct WireRequest {
  WireHeader header;
  Bytes blocks;  // block_count x (48 + 4 * slots_per_block) bytes
  WireBlock block(uint32_t index) const;
  uint32_t slot(uint32_t index, uint32_t slot_index) const;
};

struct WireReply {
  WireHeader header;
  Bytes blocks;
  WireBlockReply block(uint32_t index) const;
};

enum class WireCheck : uint8_t {
  kOk,
  kShort,
  kBadMagic,
  kBadVersion,
  kBadLength,
  kBadField,
  kBadChecksum
};
const char* ToString(WireCheck check);

// Requests of every type but kReply.
WireCheck ParseRequest(Bytes message, WireRequest* out);
WireCheck ParseReply(Bytes message, WireReply* out);

// Total size of a message; 0 if a count is over its limit.
uint32_t RequestBytes(uint32_t block_count, uint32_t slots_per_block);
uint32_t ReplyBytes(uint32_t block_count);

// Fills `out` (exactly RequestBytes / ReplyBytes long): header first, then blocks by index, then
// Finish writes the length and the checksum.
void WriteWireHeader(const WireHeader& header, MutableBytes out);
void WriteWireBlock(uint32_t index, const WireBlock& block, absl::Span<const uint32_t> slots,
                    MutableBytes out);
void WriteWireBlockReply(uint32_t index, const WireBlockReply& block, MutableBytes out);
void FinishWireMessage(MutableBytes out);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_WIRE_H_
