// Connection blobs and copy messages: round trips, and refusal of everything that does not add up.
// No network. One thread.
#include "cachesvc/net/frames.h"

#include <gtest/gtest.h>

#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/net/copy_wire.h"

namespace crumb {
namespace {

const std::string kAddress(37, 'a');

std::string Hello() {
  return EncodeHello({.cookie = 42,
                      .queue_slots = 256,
                      .queue_bytes = 20480,
                      .one_sided = false,
                      .process = {.host = 3, .start = 4, .pid = 5},
                      .address = AsBytes(kAddress)});
}

std::string Rkey() {
  return EncodeRkey({.address = 4096, .bytes = 8192, .key = AsBytes("0123456789")});
}

// Same body, right checksum: what a forger can make.
std::string Reseal(std::string blob) {
  blob.resize(blob.size() - 8);
  const uint64_t checksum = Xxh3(AsBytes(blob));
  blob.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return blob;
}

TEST(Frames, RoundTrip) {
  const std::string hello = Hello(), rkey = Rkey();
  const auto parsed = ParseHello(AsBytes(hello));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->cookie, 42u);
  EXPECT_EQ(parsed->queue_slots, 256u);
  EXPECT_EQ(parsed->queue_bytes, 20480u);
  EXPECT_FALSE(parsed->one_sided);
  EXPECT_EQ(parsed->process.host, 3u);
  EXPECT_EQ(parsed->process.start, 4u);
  EXPECT_EQ(parsed->process.pid, 5u);
  EXPECT_EQ(parsed->address, AsBytes(kAddress));
  const auto key = ParseRkey(AsBytes(rkey));
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(key->address, 4096u);
  EXPECT_EQ(key->bytes, 8192u);
  EXPECT_EQ(key->key, AsBytes("0123456789"));
  const std::string bare = EncodeRkey({.address = 1, .bytes = 1, .key = {}});
  EXPECT_TRUE(ParseRkey(AsBytes(bare)).ok());
}

TEST(Frames, EveryCutAndEveryBitIsNoticed) {
  for (const std::string& blob : {Hello(), Rkey()}) {
    const auto accepted = [](const std::string& text) {
      return ParseHello(AsBytes(text)).ok() || ParseRkey(AsBytes(text)).ok();
    };
    ASSERT_TRUE(accepted(blob));
    for (size_t size = 0; size < blob.size(); ++size) {
      ASSERT_FALSE(accepted(blob.substr(0, size)));
      ASSERT_FALSE(accepted(blob + blob.substr(0, size + 1)));
    }
    for (size_t bit = 0; bit < blob.size() * 8; ++bit) {
      std::string changed = blob;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_FALSE(accepted(changed)) << bit;
    }
  }
  EXPECT_FALSE(ParseHello(AsBytes(Rkey())).ok());
  EXPECT_FALSE(ParseRkey(AsBytes(Hello())).ok());
}

// With a right checksum the fields still have to make sense; views never leave the input.
TEST(Frames, ForgedFieldsAreRefusedOrHarmless) {
  Rng rng(9);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string blob = i % 2 == 0 ? Hello() : Rkey();
    const size_t at = rng.Below(40);
    const uint64_t evil[] = {0, 1, 0xff, 0xffff, UINT32_MAX, UINT64_MAX, rng.Next()};
    const uint64_t value = evil[rng.Below(std::size(evil))];
    std::memcpy(&blob[at], &value, 1 + rng.Below(8));
    blob = Reseal(blob);
    const char* end = blob.data() + blob.size();
    if (const auto hello = ParseHello(AsBytes(blob)); hello.ok()) {
      ++accepted;
      ASSERT_NE(hello->cookie, 0u);
      ASSERT_FALSE(hello->address.empty());
      ASSERT_EQ(reinterpret_cast<const char*>(hello->address.end()), end - 8);
    }
    if (const auto rkey = ParseRkey(AsBytes(blob)); rkey.ok()) {
      ++accepted;
      ASSERT_GT(rkey->bytes, 0u);
      ASSERT_LE(rkey->bytes, UINT64_MAX - rkey->address);
      ASSERT_EQ(reinterpret_cast<const char*>(rkey->key.end()), end - 8);
    }
  }
  EXPECT_GT(accepted, 100);
}

std::vector<uint8_t> Request(const std::vector<CopyRange>& ranges, uint32_t bytes, size_t payload) {
  std::vector<uint8_t> body(sizeof(CopyHeader) + ranges.size() * sizeof(CopyRange) + payload, 7);
  WriteCopyHeader(
      {.cookie = 1, .operation = 2, .count = static_cast<uint32_t>(ranges.size()), .bytes = bytes},
      body.data());
  for (uint32_t i = 0; i < ranges.size(); ++i) WriteCopyRange(i, ranges[i], body.data());
  return body;
}

bool Accepted(const std::vector<uint8_t>& body, CopyKind kind) {
  CopyRequest request;
  return ParseCopyRequest(body, kind, &request);
}

TEST(CopyWire, RequestsMustAddUp) {
  const std::vector<CopyRange> two = {{4096, 10}, {8192, 22}};
  EXPECT_TRUE(Accepted(Request(two, 32, 0), CopyKind::kRead));
  EXPECT_TRUE(Accepted(Request(two, 32, 32), CopyKind::kWrite));
  EXPECT_FALSE(Accepted(Request(two, 32, 1), CopyKind::kRead));
  EXPECT_FALSE(Accepted(Request(two, 32, 31), CopyKind::kWrite));
  EXPECT_FALSE(Accepted(Request(two, 31, 31), CopyKind::kWrite));
  EXPECT_FALSE(Accepted(Request(two, 33, 33), CopyKind::kWrite));
  EXPECT_FALSE(Accepted(Request({}, 0, 0), CopyKind::kRead));
  EXPECT_FALSE(Accepted(Request({{4096, 0}, {8192, 32}}, 32, 0), CopyKind::kRead));
  EXPECT_FALSE(Accepted(Request({{UINT64_MAX, 4}}, 4, 0), CopyKind::kRead));
  // Sums that wrap to the right total.
  EXPECT_FALSE(Accepted(Request({{1, UINT64_MAX}, {1, 33}}, 32, 0), CopyKind::kRead));
  EXPECT_TRUE(Accepted(Request({{1, kCopyBytesMax}}, kCopyBytesMax, 0), CopyKind::kRead));
  EXPECT_FALSE(Accepted(Request({{1, kCopyBytesMax + 1}}, kCopyBytesMax + 1, 0), CopyKind::kRead));
  EXPECT_TRUE(Accepted(Request(std::vector<CopyRange>(kCopyRangesMax, {1, 1}), kCopyRangesMax, 0),
                       CopyKind::kRead));
  EXPECT_FALSE(
      Accepted(Request(std::vector<CopyRange>(kCopyRangesMax + 1, {1, 1}), kCopyRangesMax + 1, 0),
               CopyKind::kRead));
}

TEST(CopyWire, EveryCutIsNoticed) {
  const auto write = Request({{4096, 10}, {8192, 22}}, 32, 32);
  for (size_t size = 0; size < write.size(); ++size) {
    const std::vector<uint8_t> cut(write.begin(), write.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(Accepted(cut, CopyKind::kWrite)) << size;
    CopyAnswer answer;
    const bool accepted = ParseCopyAnswer(cut, &answer);
    EXPECT_FALSE(accepted && size < sizeof(CopyHeader)) << size;
  }
}

TEST(CopyWire, AnswersMustAddUp) {
  const auto answered = [](uint32_t outcome, uint32_t bytes, size_t payload) {
    std::vector<uint8_t> body(sizeof(CopyHeader) + payload);
    WriteCopyHeader({.cookie = 1, .operation = 2, .count = outcome, .bytes = bytes}, body.data());
    CopyAnswer answer;
    return ParseCopyAnswer(body, &answer) && answer.payload.size() == bytes;
  };
  EXPECT_TRUE(answered(kCopyDone, 0, 0));
  EXPECT_TRUE(answered(kCopyRefused, 0, 0));
  EXPECT_TRUE(answered(kCopyDone, 100, 100));
  EXPECT_FALSE(answered(kCopyDone, 100, 99));
  EXPECT_FALSE(answered(kCopyRefused, 100, 100));
  EXPECT_FALSE(answered(2, 0, 0));
  EXPECT_FALSE(answered(kCopyDone, kCopyBytesMax + 1, kCopyBytesMax + 1));
}

TEST(PieceWalk, VisitsEveryByteOnceInPiecesOfAnySize) {
  Rng rng(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<Segment> segments;
    uint64_t total = 0;
    for (uint64_t n = 1 + rng.Below(20); n > 0; --n) {
      const uint64_t bytes = 1 + rng.Below(50);
      segments.push_back({.region = static_cast<uint32_t>(n),
                          .address = 1000 * n,
                          .local_offset = total,
                          .bytes = bytes});
      total += bytes;
    }
    PieceWalk::Start start;
    uint64_t seen = 0;
    while (seen < total) {
      start.bytes = 1 + rng.Below(100);
      PieceWalk walk(segments, start);
      PieceWalk::Piece piece;
      uint64_t here = 0;
      while (walk.Next(&piece)) {
        ASSERT_EQ(piece.local_offset, seen);
        seen += piece.bytes;
        here += piece.bytes;
      }
      ASSERT_LE(here, start.bytes);
      start = walk.at();
    }
    ASSERT_EQ(seen, total);
    ASSERT_EQ(start.segment, segments.size());
  }
}

}  // namespace
}  // namespace crumb
