// Writes and checks the two blobs. Control path; no thread of its own.
#include "cachesvc/net/frames.h"

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr size_t kHelloHeaderBytes = 48;
constexpr size_t kRkeyHeaderBytes = 24;
constexpr size_t kChecksumBytes = 8;
constexpr uint16_t kFlagOneSided = 1;

absl::Status Bad(const char* what, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

// Length, checksum, magic and version: what both frames share.
absl::Status CheckOuter(const char* what, Bytes blob, size_t header_bytes, size_t bytes_max) {
  if (blob.size() < header_bytes + kChecksumBytes) return Bad(what, "cut short");
  if (blob.size() > bytes_max) return Bad(what, "longer than any that was ever made");
  const Bytes body = blob.first(blob.size() - kChecksumBytes);
  ByteReader tail(blob.last(kChecksumBytes));
  if (tail.Read<uint64_t>() != Xxh3(body)) return Bad(what, "damaged (checksum); ask for it again");
  return absl::OkStatus();
}

std::string Seal(ByteWriter writer) {
  writer.Write<uint64_t>(Xxh3(AsBytes(writer.str())));
  return std::move(writer.str());
}

}  // namespace

std::string EncodeHello(const HelloFrame& hello) {
  CRUMB_CHECK(!hello.address.empty() &&
              kHelloHeaderBytes + hello.address.size() + kChecksumBytes <= kHelloFrameBytesMax);
  ByteWriter writer;
  writer.Write<uint32_t>(kHelloMagic);
  writer.Write<uint16_t>(kFrameVersion);
  writer.Write<uint16_t>(hello.one_sided ? kFlagOneSided : 0);
  writer.Write<uint64_t>(hello.cookie);
  writer.Write<uint32_t>(static_cast<uint32_t>(hello.address.size()));
  writer.Write<uint32_t>(hello.queue_slots);
  writer.Write<uint32_t>(hello.queue_bytes);
  writer.Write<uint32_t>(hello.process.pid);
  writer.Write<uint64_t>(hello.process.host);
  writer.Write<uint64_t>(hello.process.start);
  writer.WriteBytes(hello.address);
  return Seal(std::move(writer));
}

absl::StatusOr<HelloFrame> ParseHello(Bytes blob) {
  CRUMB_TRY(CheckOuter("hello", blob, kHelloHeaderBytes, kHelloFrameBytesMax));
  ByteReader reader(blob);
  if (reader.Read<uint32_t>() != kHelloMagic) return Bad("hello", "not a hello of this service");
  if (reader.Read<uint16_t>() != kFrameVersion) {
    return Bad("hello", "of another version; run the same release on both sides");
  }
  const auto flags = reader.Read<uint16_t>();
  HelloFrame hello;
  hello.one_sided = flags == kFlagOneSided;
  hello.cookie = reader.Read<uint64_t>();
  const auto bytes = reader.Read<uint32_t>();
  hello.queue_slots = reader.Read<uint32_t>();
  hello.queue_bytes = reader.Read<uint32_t>();
  hello.process.pid = reader.Read<uint32_t>();
  hello.process.host = reader.Read<uint64_t>();
  hello.process.start = reader.Read<uint64_t>();
  hello.address = reader.ReadBytes(bytes);
  if (!reader.ok() || reader.remaining() != kChecksumBytes || hello.address.empty() ||
      flags > kFlagOneSided || hello.cookie == 0) {
    return Bad("hello", "its fields contradict its length");
  }
  return hello;
}

std::string EncodeRkey(const RkeyFrame& rkey) {
  CRUMB_CHECK(kRkeyHeaderBytes + rkey.key.size() + kChecksumBytes <= kRkeyFrameBytesMax);
  ByteWriter writer;
  writer.Write<uint32_t>(kRkeyMagic);
  writer.Write<uint16_t>(kFrameVersion);
  writer.Write<uint16_t>(static_cast<uint16_t>(rkey.key.size()));
  writer.Write<uint64_t>(rkey.address);
  writer.Write<uint64_t>(rkey.bytes);
  writer.WriteBytes(rkey.key);
  return Seal(std::move(writer));
}

absl::StatusOr<RkeyFrame> ParseRkey(Bytes blob) {
  CRUMB_TRY(CheckOuter("rkey", blob, kRkeyHeaderBytes, kRkeyFrameBytesMax));
  ByteReader reader(blob);
  if (reader.Read<uint32_t>() != kRkeyMagic) return Bad("rkey", "not a key of this service");
  if (reader.Read<uint16_t>() != kFrameVersion) {
    return Bad("rkey", "of another version; run the same release on both sides");
  }
  const auto bytes = reader.Read<uint16_t>();
  RkeyFrame rkey;
  rkey.address = reader.Read<uint64_t>();
  rkey.bytes = reader.Read<uint64_t>();
  rkey.key = reader.ReadBytes(bytes);
  if (!reader.ok() || reader.remaining() != kChecksumBytes || rkey.bytes == 0 ||
      rkey.bytes > UINT64_MAX - rkey.address) {
    return Bad("rkey", "its fields contradict its length");
  }
  return rkey;
}

}  // namespace crumb
