// Thin wrappers over libxxhash and OpenSSL.
#include "cachesvc/base/hash.h"

// WHY the low-level calls: they neither allocate nor look their algorithm up each time, which costs
// four times as much as hashing a key.
#define OPENSSL_API_COMPAT 0x10101000L
#include <openssl/sha.h>
#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include <new>

#include "cachesvc/base/check.h"
#include "cachesvc/base/xxh3_kernel.h"

namespace crumb {
namespace {

const XXH3_state_t* State(const std::array<uint8_t, 640>& memory) {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(memory.data()));
}

}  // namespace

uint64_t Xxh3(Bytes data) { return Xxh3Kernel(data.data(), data.size()); }

uint64_t Xxh3(Bytes first, Bytes second) {
  Xxh3Stream stream;
  stream.Add(first);
  stream.Add(second);
  return stream.Digest();
}

Xxh3Stream::Xxh3Stream() {
  static_assert(sizeof(state_) >= sizeof(XXH3_state_t));
  static_assert(alignof(Xxh3Stream) >= alignof(XXH3_state_t));
  auto* state = new (state_.data()) XXH3_state_t;
  CRUMB_CHECK(XXH3_64bits_reset(state) == XXH_OK);
}

void Xxh3Stream::Add(Bytes data) {
  if (data.empty()) return;
  auto* state = std::launder(reinterpret_cast<XXH3_state_t*>(state_.data()));
  CRUMB_CHECK(Xxh3KernelUpdate(state, data.data(), data.size()));
}

uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(State(state_)); }

Sha256 Sha256Of(Bytes data) {
  Sha256 out{};
  static_assert(SHA256_DIGEST_LENGTH == out.size());
  SHA256_CTX state;
  CRUMB_CHECK(SHA256_Init(&state) == 1);
  CRUMB_CHECK(SHA256_Update(&state, data.data(), data.size()) == 1);
  CRUMB_CHECK(SHA256_Final(out.data(), &state) == 1);
  return out;
}

Digest DigestOf(Bytes external_key) {
  const Sha256 full = Sha256Of(external_key);
  Digest digest;
  std::memcpy(digest.bytes.data(), full.data(), digest.bytes.size());
  return digest;
}

std::string Hex(Bytes data) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(data.size() * 2);
  for (uint8_t byte : data) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

bool ParseHex(std::string_view text, MutableBytes out) {
  if (text.size() != out.size() * 2) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else if (c >= 'A' && c <= 'F') {
      value = c - 'A' + 10;
    } else {
      return false;
    }
    const auto byte = static_cast<uint8_t>(i % 2 == 0 ? value << 4 : out[i / 2] | value);
    out[i / 2] = byte;
  }
  return true;
}

}  // namespace crumb
