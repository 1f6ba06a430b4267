// Key derivation over OpenSSL: HKDF-SHA256 once per (tenant, identity), then one AES-128 block per
// key in a reused context, so that the shard thread neither allocates nor schedules keys.
#include "cachesvc/base/keys.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <string>
#include <type_traits>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr size_t kAesKeyBytes = 16;
constexpr size_t kDeriveMax = 1 << 20;  // keys in one pass; the cipher counts bytes in an int
constexpr std::string_view kSalt = "crumb block key v1";

uint64_t Prefix64(const Sha256& hash) {
  uint64_t value;
  std::memcpy(&value, hash.data(), sizeof(value));
  return value;
}

// HKDF-SHA256 (RFC 5869): salt kSalt, info = u32 length of the tenant, tenant, identity hash.
std::array<uint8_t, kAesKeyBytes> DeriveAesKey(const ClusterSecret& secret, std::string_view tenant,
                                               const IdentityHash& identity) {
  ByteWriter info;
  info.WriteString(tenant);
  info.WriteBytes(identity.bytes);
  EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  CRUMB_CHECK(kdf != nullptr);
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  CRUMB_CHECK(context != nullptr);
  std::string digest = "SHA256";
  std::array<uint8_t, kClusterSecretBytes> ikm = secret.bytes;
  std::string salt(kSalt);
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, ikm.data(), ikm.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.str().data(), info.size()),
      OSSL_PARAM_construct_end()};
  std::array<uint8_t, kAesKeyBytes> key{};
  CRUMB_CHECK(EVP_KDF_derive(context, key.data(), key.size(), params) == 1);
  EVP_KDF_CTX_free(context);
  return key;
}

}  // namespace

uint64_t ClusterSecret::fingerprint() const {
  ByteWriter text;
  text.WriteBytes(AsBytes("crumb secret"));
  text.WriteBytes(bytes);
  return Prefix64(Sha256Of(AsBytes(text.str())));
}

uint64_t TenantPrefix(std::string_view tenant) { return Prefix64(Sha256Of(AsBytes(tenant))); }

struct KeyDeriver::Impl {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  ~Impl() { EVP_CIPHER_CTX_free(context); }
};

KeyDeriver::KeyDeriver(const ClusterSecret& secret, std::string_view tenant,
                       const IdentityHash& identity)
    : impl_(std::make_unique<Impl>()) {
  CRUMB_CHECK(impl_->context != nullptr);
  const auto key = DeriveAesKey(secret, tenant, identity);
  CRUMB_CHECK(EVP_EncryptInit_ex(impl_->context, EVP_aes_128_ecb(), nullptr, key.data(), nullptr) ==
              1);
  CRUMB_CHECK(EVP_CIPHER_CTX_set_padding(impl_->context, 0) == 1);
}

KeyDeriver::~KeyDeriver() = default;
KeyDeriver::KeyDeriver(KeyDeriver&&) noexcept = default;
KeyDeriver& KeyDeriver::operator=(KeyDeriver&&) noexcept = default;

BlockKey KeyDeriver::Plain(const Digest& digest, uint32_t part) {
  // The part number is xored, little-endian, into the last four bytes.
  BlockKey block;
  block.bytes = digest.bytes;
  for (size_t i = 0; i < sizeof(part); ++i) {
    block.bytes[12 + i] = static_cast<uint8_t>(block.bytes[12 + i] ^ (part >> (8 * i)));
  }
  return block;
}

BlockKey KeyDeriver::Derive(const Digest& digest, uint32_t part) const {
  BlockKey key = Plain(digest, part);
  DeriveInPlace(absl::MakeSpan(&key, 1));
  return key;
}

// ECB over independent blocks: the library keeps several of them in flight.
void KeyDeriver::DeriveInPlace(absl::Span<BlockKey> blocks) const {
  static_assert(sizeof(BlockKey) == 16 && std::is_trivially_copyable_v<BlockKey>);
  if (blocks.empty()) return;
  CRUMB_CHECK(blocks.size() <= kDeriveMax);
  auto* const bytes = reinterpret_cast<uint8_t*>(blocks.data());
  const int wanted = static_cast<int>(blocks.size() * sizeof(BlockKey));
  int size = 0;
  CRUMB_CHECK(EVP_EncryptUpdate(impl_->context, bytes, &size, bytes, wanted) == 1);
  CRUMB_CHECK(size == wanted);
}

}  // namespace crumb
