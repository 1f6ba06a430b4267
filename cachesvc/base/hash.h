// Named hash algorithms behind every value that must mean the same on two machines.
// Any thread. Sources: XXH3 (libxxhash), SHA-256 (OpenSSL).
#ifndef CRUMB_CACHESVC_BASE_HASH_H_
#define CRUMB_CACHESVC_BASE_HASH_H_

#include <array>
#include <cstdint>
#include <string>

#include "cachesvc/base/types.h"

namespace crumb {

using Sha256 = std::array<uint8_t, 32>;

// XXH3-64 with seed 0.
uint64_t Xxh3(Bytes data);
// XXH3-64 of the concatenation of two spans.
uint64_t Xxh3(Bytes first, Bytes second);
// XXH3-64 of the concatenation of everything added. No allocation.
class Xxh3Stream {
 public:
  Xxh3Stream();
  void Add(Bytes data);
  uint64_t Digest() const;

 private:
  alignas(64) std::array<uint8_t, 640> state_;
};

// SHA-256; aborts only if OpenSSL is out of memory.
Sha256 Sha256Of(Bytes data);

// First 16 bytes of SHA-256: what a client does with an external key.
Digest DigestOf(Bytes external_key);

// Lower-case hexadecimal.
std::string Hex(Bytes data);
// Inverse of Hex for exactly out.size() bytes; false if the text is anything else.
bool ParseHex(std::string_view text, MutableBytes out);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_HASH_H_
