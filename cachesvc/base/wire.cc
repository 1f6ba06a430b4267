// Parsing and writing of data-plane messages. No allocation; every field is checked before use.
#include "cachesvc/base/wire.h"

#include <cstddef>
#include <cstring>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

static_assert(offsetof(WireHeader, request_id) == 16);
static_assert(offsetof(WireHeader, deadline_us) == 32);
static_assert(offsetof(WireHeader, slots_per_block) == 44);
static_assert(offsetof(WireHeader, checksum) == 56);
static_assert(offsetof(WireBlock, token_start) == 32);
static_assert(offsetof(WireBlock, provenance) == 40);
static_assert(offsetof(WireBlock, value_bytes) == 44);
static_assert(offsetof(WireBlockReply, checksum) == 8);

constexpr size_t kHeaderBytes = sizeof(WireHeader);
constexpr size_t kChecksumOffset = offsetof(WireHeader, checksum);

template <typename T>
T Load(Bytes bytes, size_t offset) {
  CRUMB_CHECK(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof(T));
  return value;
}

uint64_t MessageChecksum(Bytes message) {
  uint8_t head[kHeaderBytes];
  std::memcpy(head, message.data(), kHeaderBytes);
  std::memset(head + kChecksumOffset, 0, sizeof(uint64_t));
  return Xxh3(Bytes(head, kHeaderBytes), message.subspan(kHeaderBytes));
}

constexpr size_t BlockStride(uint32_t slots_per_block) {
  return sizeof(WireBlock) + sizeof(uint32_t) * size_t{slots_per_block};
}

// Everything in front of the type-specific fields.
WireCheck CheckEnvelope(Bytes message, WireHeader* header) {
  if (message.size() < kHeaderBytes) return WireCheck::kShort;
  if (message.size() > kWireMessageBytesMax) return WireCheck::kBadLength;
  *header = Load<WireHeader>(message, 0);
  if (header->magic != kWireMagic) return WireCheck::kBadMagic;
  if (header->version != kWireVersion) return WireCheck::kBadVersion;
  if (header->message_bytes != message.size()) return WireCheck::kBadLength;
  if (header->reserved0 != 0) return WireCheck::kBadField;
  const bool moves = header->type == WireType::kPut || header->type == WireType::kGet;
  if (!moves && header->gpu_ticket != 0) return WireCheck::kBadField;
  if (header->form > PageForm::kPage) return WireCheck::kBadField;
  if (header->block_count > kBlocksPerRequestMax) return WireCheck::kBadField;
  if (header->slots_per_block > kSlotsPerBlockMax) return WireCheck::kBadField;
  return WireCheck::kOk;
}

struct TypeRules {
  uint16_t flags;        // allowed
  bool blocks;           // needs at least one; else has none
  bool slots;            // needs at least one per block; else has none
  bool value_bytes_any;  // else by form (put), or zero
};

bool RulesOf(WireType type, TypeRules* rules) {
  switch (type) {
    case WireType::kPut:
      *rules = {.flags = kWireFlagDurable, .blocks = true, .slots = true, .value_bytes_any = false};
      return true;
    case WireType::kGet:
      *rules = {.flags = kWireFlagWait, .blocks = true, .slots = true, .value_bytes_any = true};
      return true;
    case WireType::kLookup:
      *rules = {
          .flags = kWireFlagStopAtGap, .blocks = true, .slots = false, .value_bytes_any = false};
      return true;
    case WireType::kDelete:
    case WireType::kPrefetch:
      *rules = {.flags = 0, .blocks = true, .slots = false, .value_bytes_any = false};
      return true;
    case WireType::kCancel:
    case WireType::kHello:
    case WireType::kGoodbye:
      *rules = {.flags = 0, .blocks = false, .slots = false, .value_bytes_any = false};
      return true;
    case WireType::kReply:
      return false;
  }
  return false;
}

WireCheck CheckRequestHeader(const WireHeader& header, const TypeRules& rules) {
  if ((header.flags & ~rules.flags) != 0) return WireCheck::kBadField;
  if (rules.blocks != (header.block_count > 0)) return WireCheck::kBadField;
  if (rules.slots != (header.slots_per_block > 0)) return WireCheck::kBadField;
  if (header.message_bytes != RequestBytes(header.block_count, header.slots_per_block)) {
    return WireCheck::kBadLength;
  }
  return WireCheck::kOk;
}

bool BlockIsValid(const WireHeader& header, const TypeRules& rules, const WireBlock& block) {
  if (block.provenance > Provenance::kTranscoded) return false;
  if (block.reserved0 != 0) return false;
  const bool packed = header.type == WireType::kPut && header.form == PageForm::kPacked;
  if (block.codec_tag != 0 && !packed) return false;
  if (rules.value_bytes_any) return true;
  const bool carries = header.type == WireType::kPut && header.form != PageForm::kRaw;
  return carries == (block.value_bytes > 0);
}

}  // namespace

const char* ToString(WireCheck check) {
  switch (check) {
    case WireCheck::kOk:
      return "ok";
    case WireCheck::kShort:
      return "shorter than a header";
    case WireCheck::kBadMagic:
      return "bad magic";
    case WireCheck::kBadVersion:
      return "unknown wire version";
    case WireCheck::kBadLength:
      return "length does not match";
    case WireCheck::kBadField:
      return "field out of range";
    case WireCheck::kBadChecksum:
      return "checksum mismatch";
  }
  return "unknown";
}

WireBlock WireRequest::block(uint32_t index) const {
  CRUMB_CHECK(index < header.block_count);
  return Load<WireBlock>(blocks, index * BlockStride(header.slots_per_block));
}

uint32_t WireRequest::slot(uint32_t index, uint32_t slot_index) const {
  CRUMB_CHECK(index < header.block_count && slot_index < header.slots_per_block);
  return Load<uint32_t>(blocks, index * BlockStride(header.slots_per_block) + sizeof(WireBlock) +
                                    slot_index * sizeof(uint32_t));
}

WireBlockReply WireReply::block(uint32_t index) const {
  CRUMB_CHECK(index < header.block_count);
  return Load<WireBlockReply>(blocks, index * sizeof(WireBlockReply));
}

WireCheck ParseRequest(Bytes message, WireRequest* out) {
  WireHeader header;
  if (WireCheck check = CheckEnvelope(message, &header); check != WireCheck::kOk) return check;
  TypeRules rules{};
  if (!RulesOf(header.type, &rules)) return WireCheck::kBadField;
  if (WireCheck check = CheckRequestHeader(header, rules); check != WireCheck::kOk) return check;
  if (MessageChecksum(message) != header.checksum) return WireCheck::kBadChecksum;
  const WireRequest request{.header = header, .blocks = message.subspan(kHeaderBytes)};
  for (uint32_t i = 0; i < header.block_count; ++i) {
    if (!BlockIsValid(header, rules, request.block(i))) return WireCheck::kBadField;
  }
  *out = request;
  return WireCheck::kOk;
}

WireCheck ParseReply(Bytes message, WireReply* out) {
  WireHeader header;
  if (WireCheck check = CheckEnvelope(message, &header); check != WireCheck::kOk) return check;
  if (header.type != WireType::kReply || header.flags != 0 || header.slots_per_block != 0) {
    return WireCheck::kBadField;
  }
  if (header.message_bytes != ReplyBytes(header.block_count)) return WireCheck::kBadLength;
  if (MessageChecksum(message) != header.checksum) return WireCheck::kBadChecksum;
  const WireReply reply{.header = header, .blocks = message.subspan(kHeaderBytes)};
  for (uint32_t i = 0; i < header.block_count; ++i) {
    const WireBlockReply block = reply.block(i);
    if (static_cast<int>(block.result) >= kBlockResultCount || block.tier > Tier::kPeer ||
        block.precision > Precision::kInt2) {
      return WireCheck::kBadField;
    }
  }
  *out = reply;
  return WireCheck::kOk;
}

uint32_t RequestBytes(uint32_t block_count, uint32_t slots_per_block) {
  static_assert(kHeaderBytes + kBlocksPerRequestMax * BlockStride(kSlotsPerBlockMax) <=
                kWireMessageBytesMax);
  if (block_count > kBlocksPerRequestMax || slots_per_block > kSlotsPerBlockMax) return 0;
  return static_cast<uint32_t>(kHeaderBytes + block_count * BlockStride(slots_per_block));
}

uint32_t ReplyBytes(uint32_t block_count) {
  if (block_count > kBlocksPerRequestMax) return 0;
  return static_cast<uint32_t>(kHeaderBytes + block_count * sizeof(WireBlockReply));
}

void WriteWireHeader(const WireHeader& header, MutableBytes out) {
  CRUMB_CHECK(out.size() >= kHeaderBytes);
  std::memcpy(out.data(), &header, kHeaderBytes);
}

void WriteWireBlock(uint32_t index, const WireBlock& block, absl::Span<const uint32_t> slots,
                    MutableBytes out) {
  CRUMB_CHECK(slots.size() <= kSlotsPerBlockMax && index < kBlocksPerRequestMax);
  const size_t stride = BlockStride(static_cast<uint32_t>(slots.size()));
  const size_t offset = kHeaderBytes + index * stride;
  CRUMB_CHECK(offset + stride <= out.size());
  std::memcpy(out.data() + offset, &block, sizeof(block));
  if (slots.empty()) return;
  std::memcpy(out.data() + offset + sizeof(block), slots.data(), slots.size() * sizeof(uint32_t));
}

void WriteWireBlockReply(uint32_t index, const WireBlockReply& block, MutableBytes out) {
  const size_t offset = kHeaderBytes + size_t{index} * sizeof(block);
  CRUMB_CHECK(index < kBlocksPerRequestMax && offset + sizeof(block) <= out.size());
  std::memcpy(out.data() + offset, &block, sizeof(block));
}

void FinishWireMessage(MutableBytes out) {
  CRUMB_CHECK(out.size() >= kHeaderBytes && out.size() <= kWireMessageBytesMax);
  const auto bytes = static_cast<uint32_t>(out.size());
  std::memcpy(out.data() + offsetof(WireHeader, message_bytes), &bytes, sizeof(bytes));
  const uint64_t checksum = MessageChecksum(out);
  std::memcpy(out.data() + kChecksumOffset, &checksum, sizeof(checksum));
}

}  // namespace crumb
