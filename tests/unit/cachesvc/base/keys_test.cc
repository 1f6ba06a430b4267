// Key derivation: a permutation per (secret, tenant, identity), and what it is made of.
#include "cachesvc/base/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

ClusterSecret Secret(uint8_t fill) {
  ClusterSecret secret;
  secret.bytes.fill(fill);
  return secret;
}

IdentityHash Id(uint8_t fill) {
  IdentityHash hash;
  hash.bytes.fill(fill);
  return hash;
}

TEST(KeyDeriver, DependsOnEveryInput) {
  const Digest digest = DigestOf(AsBytes("key"));
  std::set<BlockKey> keys;
  keys.insert(KeyDeriver(Secret(1), "a", Id(1)).Derive(digest, 0));
  keys.insert(KeyDeriver(Secret(2), "a", Id(1)).Derive(digest, 0));
  keys.insert(KeyDeriver(Secret(1), "b", Id(1)).Derive(digest, 0));
  keys.insert(KeyDeriver(Secret(1), "", Id(1)).Derive(digest, 0));
  keys.insert(KeyDeriver(Secret(1), "a", Id(2)).Derive(digest, 0));
  keys.insert(KeyDeriver(Secret(1), "a", Id(1)).Derive(digest, 1));
  keys.insert(KeyDeriver(Secret(1), "a", Id(1)).Derive(digest, 0x01000000));
  keys.insert(KeyDeriver(Secret(1), "a", Id(1)).Derive(DigestOf(AsBytes("other")), 0));
  EXPECT_EQ(keys.size(), 8u);
}

TEST(KeyDeriver, IsReusableAndMovable) {
  KeyDeriver first(Secret(3), "tenant", Id(9));
  const Digest digest = DigestOf(AsBytes("key"));
  const BlockKey key = first.Derive(digest, 5);
  for (uint32_t part = 0; part < 100; ++part) first.Derive(digest, part);
  EXPECT_EQ(first.Derive(digest, 5), key);
  KeyDeriver second(std::move(first));
  EXPECT_EQ(second.Derive(digest, 5), key);
  KeyDeriver third(Secret(4), "x", Id(1));
  third = std::move(second);
  EXPECT_EQ(third.Derive(digest, 5), key);
}

TEST(KeyDeriver, NeverMapsTwoBlocksToOneKey) {
  const KeyDeriver deriver(Secret(3), "tenant", Id(9));
  std::set<BlockKey> keys;
  for (uint64_t i = 0; i < 2000; ++i) {
    const Digest digest = DigestOf(Bytes(reinterpret_cast<const uint8_t*>(&i), sizeof(i)));
    keys.insert(deriver.Derive(digest, 0));
    keys.insert(deriver.Derive(digest, 1));
  }
  EXPECT_EQ(keys.size(), 4000u);
}

TEST(ClusterSecret, FingerprintIsOfTheSecretOnly) {
  EXPECT_EQ(Secret(1).fingerprint(), Secret(1).fingerprint());
  EXPECT_NE(Secret(1).fingerprint(), Secret(2).fingerprint());
  EXPECT_NE(TenantPrefix("a"), TenantPrefix("b"));
}

TEST(KeyDeriver, ManyAtOnceAreTheSameAsEachByItself) {
  const KeyDeriver deriver(ClusterSecret{}, "tenant", IdentityHash{});
  std::vector<BlockKey> batch;
  std::vector<BlockKey> single;
  for (uint32_t i = 0; i < 257; ++i) {
    Digest digest;
    digest.bytes[i % 16] = static_cast<uint8_t>(i + 1);
    batch.push_back(KeyDeriver::Plain(digest, i * 77777));
    single.push_back(deriver.Derive(digest, i * 77777));
  }
  deriver.DeriveInPlace(absl::MakeSpan(batch));
  EXPECT_EQ(batch, single);
  deriver.DeriveInPlace({});
}

}  // namespace
}  // namespace crumb
