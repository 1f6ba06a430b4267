// From a client's digest to a BlockKey: AES-128 of (digest xor part) under a key derived by
// HKDF-SHA256 from the cluster secret, the tenant and the identity. A permutation per (secret,
// tenant, identity), so it adds no collisions, and no tenant can name another's pages.
#ifndef CRUMB_CACHESVC_BASE_KEYS_H_
#define CRUMB_CACHESVC_BASE_KEYS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

inline constexpr size_t kClusterSecretBytes = 32;
inline constexpr size_t kExternalKeyBytesMax = 256;

struct ClusterSecret {
  std::array<uint8_t, kClusterSecretBytes> bytes{};
  // What the superblock keeps: first 8 bytes of SHA-256("crumb secret" || secret).
  uint64_t fingerprint() const;
};

// First 8 bytes of SHA-256 of the tenant's name.
uint64_t TenantPrefix(std::string_view tenant);

// Derives keys for one (tenant, identity). One thread at a time; no allocation in Derive.
class KeyDeriver {
 public:
  KeyDeriver(const ClusterSecret& secret, std::string_view tenant, const IdentityHash& identity);
  ~KeyDeriver();
  KeyDeriver(KeyDeriver&&) noexcept;
  KeyDeriver& operator=(KeyDeriver&&) noexcept;

  BlockKey Derive(const Digest& digest, uint32_t part) const;
  // Many at once, in one pass of the cipher: each of `blocks` is a Plain before and a key after.
  static BlockKey Plain(const Digest& digest, uint32_t part);
  void DeriveInPlace(absl::Span<BlockKey> blocks) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_KEYS_H_
