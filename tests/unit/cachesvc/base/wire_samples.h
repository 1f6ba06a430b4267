// Wire messages that several tests share. The golden files are made from them.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_BASE_WIRE_SAMPLES_H_
#define CRUMB_TESTS_UNIT_CACHESVC_BASE_WIRE_SAMPLES_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "cachesvc/base/wire.h"

namespace crumb::testing {

inline Digest CountingDigest(uint8_t first) {
  Digest digest;
  std::iota(digest.bytes.begin(), digest.bytes.end(), first);
  return digest;
}

// Seals a message again after a change.
inline void Reseal(std::vector<uint8_t>& message) { FinishWireMessage(absl::MakeSpan(message)); }

// Durable put of two raw blocks with four slots each.
inline std::vector<uint8_t> PutMessage() {
  std::vector<uint8_t> message(RequestBytes(2, 4));
  const absl::Span<uint8_t> out = absl::MakeSpan(message);
  WriteWireHeader({.type = WireType::kPut,
                   .flags = kWireFlagDurable,
                   .block_count = 2,
                   .request_id = 0x1122334455667788u,
                   .session_id = 0x99aabbccddeeff00u,
                   .deadline_us = 250000,
                   .layout_handle = 3,
                   .region_set = 1,
                   .slots_per_block = 4},
                  out);
  const uint32_t first[] = {7, 8, 9, 10};
  const uint32_t second[] = {11, 12, 13, 14};
  WriteWireBlock(0, {.digest = CountingDigest(0), .parent = {}, .token_start = 0}, first, out);
  WriteWireBlock(1,
                 {.digest = CountingDigest(16),
                  .parent = CountingDigest(0),
                  .token_start = 64,
                  .token_count = 33,
                  .part = 2,
                  .provenance = Provenance::kDecode},
                 second, out);
  FinishWireMessage(out);
  return message;
}

// Get of one block in packed form that waits for its put.
inline std::vector<uint8_t> GetMessage() {
  std::vector<uint8_t> message(RequestBytes(1, 1));
  const absl::Span<uint8_t> out = absl::MakeSpan(message);
  WriteWireHeader({.type = WireType::kGet,
                   .flags = kWireFlagWait,
                   .block_count = 1,
                   .request_id = 2,
                   .session_id = 7,
                   .layout_handle = 1,
                   .region_set = 5,
                   .slots_per_block = 1,
                   .form = PageForm::kPacked},
                  out);
  const uint32_t slot[] = {0xfffffffe};
  WriteWireBlock(0, {.digest = CountingDigest(32), .parent = {}}, slot, out);
  FinishWireMessage(out);
  return message;
}

inline std::vector<uint8_t> LookupMessage() {
  std::vector<uint8_t> message(RequestBytes(3, 0));
  const absl::Span<uint8_t> out = absl::MakeSpan(message);
  WriteWireHeader({.type = WireType::kLookup,
                   .flags = kWireFlagStopAtGap,
                   .block_count = 3,
                   .request_id = 4,
                   .session_id = 7,
                   .layout_handle = 1},
                  out);
  for (uint32_t i = 0; i < 3; ++i) {
    WriteWireBlock(i, {.digest = CountingDigest(static_cast<uint8_t>(i)), .parent = {}}, {}, out);
  }
  FinishWireMessage(out);
  return message;
}

// A hit from NVMe and a miss.
inline std::vector<uint8_t> ReplyMessage() {
  std::vector<uint8_t> message(ReplyBytes(2));
  const absl::Span<uint8_t> out = absl::MakeSpan(message);
  WriteWireHeader({.type = WireType::kReply, .block_count = 2, .request_id = 99, .session_id = 7},
                  out);
  WriteWireBlockReply(0,
                      {.result = BlockResult::kOk,
                       .tier = Tier::kNvme,
                       .precision = Precision::kInt2,
                       .lossy_depth = 1,
                       .value_bytes = 4096,
                       .checksum = 0x0123456789abcdefu},
                      out);
  WriteWireBlockReply(1, {}, out);
  FinishWireMessage(out);
  return message;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_BASE_WIRE_SAMPLES_H_
