// Frames of the unix-socket transport: what the maker makes the parser takes, every damage but one
// that makes another frame is refused, and no byte outside the packet is read (run under ASan).
#include "cachesvc/net/uds_frames.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/rng.h"

namespace crumb {
namespace {

std::vector<uint8_t> Packet(const UdsFrame& frame) {
  const UdsFrameBytes head = MakeUdsFrame(frame);
  std::vector<uint8_t> out(head.span().begin(), head.span().end());
  out.insert(out.end(), frame.message.begin(), frame.message.end());
  return out;
}

// An exact heap copy, so that ASan sees the first byte read past the end.
bool Parses(const std::vector<uint8_t>& packet, UdsFrame* out) {
  const auto copy = std::make_unique<uint8_t[]>(packet.size());
  if (!packet.empty()) std::memcpy(copy.get(), packet.data(), packet.size());
  UdsFrame frame;
  if (!ParseUdsFrame(Bytes(copy.get(), packet.size()), &frame)) return false;
  uint64_t sum = 0;
  size_t read = 0;
  for (const Bytes view : {frame.message, frame.share}) {
    for (const uint8_t byte : view) sum += byte;
    read += view.size();
  }
  EXPECT_LE(sum, 255u * read);
  frame.message = frame.share = {};
  *out = frame;
  return true;
}

// A range of 4096 bytes at 512 in an allocation of 8192.
std::vector<uint8_t> Share(uint64_t allocation = 8192, uint64_t offset = 512,
                           uint64_t bytes = 4096) {
  std::vector<uint8_t> out(kUdsGpuShareBytes, 0x44);
  std::memcpy(out.data() + 80, &allocation, 8);
  std::memcpy(out.data() + 88, &offset, 8);
  std::memcpy(out.data() + 96, &bytes, 8);
  return out;
}

std::vector<uint8_t> LendGpu(uint64_t file, const std::vector<uint8_t>& share) {
  return Packet({.kind = UdsFrameKind::kLendGpu, .file = file, .share = share});
}

std::vector<std::vector<uint8_t>> Samples() {
  const std::vector<uint8_t> message(70, 0x33);
  return {
      Packet({.kind = UdsFrameKind::kMessage, .file = 0, .value = 0, .message = message}),
      Packet({.kind = UdsFrameKind::kLend, .file = 7, .value = 1 << 20, .message = {}}),
      Packet({.kind = UdsFrameKind::kLent, .file = 7, .value = 2, .message = {}}),
      Packet({.kind = UdsFrameKind::kUnlend, .file = 7, .value = 0, .message = {}}),
      LendGpu(7, Share()),
  };
}

TEST(UdsFrames, WhatIsMadeIsTaken) {
  UdsFrame frame;
  for (const auto& packet : Samples()) EXPECT_TRUE(Parses(packet, &frame));
  ASSERT_TRUE(Parses(Samples()[1], &frame));
  EXPECT_EQ(frame.kind, UdsFrameKind::kLend);
  EXPECT_EQ(frame.file, 7u);
  EXPECT_EQ(frame.value, 1u << 20);
}

TEST(UdsFrames, EveryOtherLengthIsRefused) {
  UdsFrame frame;
  for (const auto& packet : Samples()) {
    const bool message = packet == Samples()[0];
    for (size_t size = 0; size < packet.size(); ++size) {
      const bool still = message && size > kUdsHeaderBytes;  // a shorter message is one too
      EXPECT_EQ(Parses({packet.begin(), packet.begin() + static_cast<ptrdiff_t>(size)}, &frame),
                still)
          << size;
    }
    std::vector<uint8_t> longer = packet;
    longer.push_back(0);
    EXPECT_EQ(Parses(longer, &frame), message);
  }
  const std::vector<uint8_t> most(kWireMessageBytesMax, 1), over(kWireMessageBytesMax + 1, 1);
  EXPECT_TRUE(Parses(Packet({.message = most}), &frame));
  EXPECT_FALSE(Parses(Packet({.message = over}), &frame));
  EXPECT_FALSE(Parses(Packet({.message = {}}), &frame));
}

TEST(UdsFrames, EveryFieldIsChecked) {
  UdsFrame frame;
  for (const auto& packet : Samples()) {
    for (size_t at = 0; at < 8; ++at) {  // magic, version, kind
      for (int bit = 0; bit < 8; ++bit) {
        std::vector<uint8_t> bad = packet;
        bad[at] ^= static_cast<uint8_t>(1 << bit);
        UdsFrame other;
        if (Parses(bad, &other)) {
          EXPECT_GE(at, 6u) << "only another kind can be meant";
        }
      }
    }
  }
  EXPECT_FALSE(Parses(Packet({.kind = UdsFrameKind::kLend, .file = 0, .value = 1}), &frame));
  EXPECT_FALSE(Parses(Packet({.kind = UdsFrameKind::kLent, .file = 0, .value = 1}), &frame));
  EXPECT_FALSE(Parses(Packet({.kind = UdsFrameKind::kUnlend, .file = 0}), &frame));
  const std::vector<uint8_t> message(4, 1);
  EXPECT_FALSE(Parses(Packet({.file = 1, .message = message}), &frame));
}

TEST(UdsFrames, SharesOfGpuMemoryMustLieInTheirAllocation) {
  UdsFrame frame;
  const std::vector<uint8_t> packet = LendGpu(7, Share());
  ASSERT_EQ(packet.size(), kUdsLendGpuBytes);
  ASSERT_TRUE(ParseUdsFrame(packet, &frame));
  EXPECT_EQ(frame.kind, UdsFrameKind::kLendGpu);
  EXPECT_EQ(frame.value, 4096u);
  EXPECT_EQ(frame.share.data(), packet.data() + kUdsHeaderBytes);
  EXPECT_TRUE(Parses(LendGpu(1, Share(8192, 0, 8192)), &frame));
  EXPECT_TRUE(Parses(LendGpu(1, Share(UINT64_MAX, UINT64_MAX - 1, 1)), &frame));
  EXPECT_FALSE(Parses(LendGpu(0, Share()), &frame));
  EXPECT_FALSE(Parses(LendGpu(1, Share(8192, 0, 0)), &frame));
  EXPECT_FALSE(Parses(LendGpu(1, Share(8192, 1, 8192)), &frame));
  EXPECT_FALSE(Parses(LendGpu(1, Share(8192, 8192, 1)), &frame));
  EXPECT_FALSE(Parses(LendGpu(1, Share(8192, UINT64_MAX, 2)), &frame));
  EXPECT_FALSE(Parses(LendGpu(1, Share(8192, 2, UINT64_MAX)), &frame));
  UdsGpuShare parts;
  ASSERT_TRUE(ParseUdsGpuShare(WholeUdsGpuShare(Share()), &parts));
  EXPECT_EQ(parts.offset, 0u);
  EXPECT_EQ(parts.bytes, 8192u);
  EXPECT_FALSE(ParseUdsGpuShare(Bytes(Share()).first(kUdsGpuShareBytes - 1), &parts));
}

TEST(UdsFrames, RandomBytesNeverHurt) {
  Rng rng(5);
  const auto samples = Samples();
  for (int round = 0; round < 20'000; ++round) {
    std::vector<uint8_t> packet = samples[rng.Below(samples.size())];
    for (uint64_t i = rng.Below(6); i > 0; --i) {
      packet[rng.Below(packet.size())] = static_cast<uint8_t>(rng.Next());
    }
    packet.resize(rng.Below(packet.size() + 20));
    UdsFrame frame;
    if (!Parses(packet, &frame)) continue;
    EXPECT_EQ(frame.file == 0, frame.kind == UdsFrameKind::kMessage);
  }
}

TEST(UdsFrames, KeysNameAFileAndAnOffset) {
  const auto key = MakeUdsRkey({.file = 9, .offset = 4096});
  UdsRkey out;
  ASSERT_TRUE(ParseUdsRkey(key, &out));
  EXPECT_EQ(out.file, 9u);
  EXPECT_EQ(out.offset, 4096u);
  EXPECT_FALSE(ParseUdsRkey(Bytes(key).first(15), &out));
  const auto none = MakeUdsRkey({.file = 0, .offset = 0});
  EXPECT_FALSE(ParseUdsRkey(none, &out));
}

}  // namespace
}  // namespace crumb
