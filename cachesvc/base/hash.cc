// Thin wrappers over libxxhash and OpenSSL.
#include "cachesvc/base/hash.h"

#include <openssl/evp.h>
#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include "cachesvc/base/check.h"

namespace crumb {

uint64_t Xxh3(Bytes data) { return XXH3_64bits(data.data(), data.size()); }

uint64_t Xxh3(Bytes first, Bytes second) {
  XXH3_state_t state;  // about 576 bytes on the stack; no allocation
  CRUMB_CHECK(XXH3_64bits_reset(&state) == XXH_OK);
  CRUMB_CHECK(XXH3_64bits_update(&state, first.data(), first.size()) == XXH_OK);
  CRUMB_CHECK(XXH3_64bits_update(&state, second.data(), second.size()) == XXH_OK);
  return XXH3_64bits_digest(&state);
}

Sha256 Sha256Of(Bytes data) {
  Sha256 out{};
  unsigned int size = 0;
  CRUMB_CHECK(EVP_Digest(data.data(), data.size(), out.data(), &size, EVP_sha256(), nullptr) == 1);
  CRUMB_CHECK(size == out.size());
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
