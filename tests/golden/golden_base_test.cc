// Frozen bytes of cachesvc/base: page header, wire messages, identities, keys, hashes, random
// numbers. A failure here means that stored pages and other machines would disagree.
#include <gtest/gtest.h>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/keys.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "tests/golden/golden.h"
#include "tests/unit/cachesvc/base/identity_samples.h"
#include "tests/unit/cachesvc/base/wire_samples.h"

namespace crumb {
namespace {

BlockKey CountingKey(uint8_t first) {
  BlockKey key;
  key.bytes = testing::CountingDigest(first).bytes;
  return key;
}

TEST(Golden, PageHeader) {
  std::vector<uint8_t> page(kPageHeaderBytes + 300);
  for (size_t i = kPageHeaderBytes; i < page.size(); ++i) page[i] = static_cast<uint8_t>(i * 7);
  PageHeader header;
  header.precision = Precision::kInt2;
  header.provenance = Provenance::kDecode;
  header.identity_prefix = 0x1111111122222222u;
  header.codec_id = 0x3333333344444444u;
  header.key = CountingKey(0x40);
  header.parent_prefix = 0x5555555566666666u;
  header.token_start = 4096;
  header.token_count = 64;
  header.lossy_depth = 3;
  header.flags = kPageFlagStepped | kPageFlagSink;
  header.payload_bytes = 300;
  header.tenant_prefix = 0x7777777788888888u;
  header.part = 5;
  header.raw_bytes = 4096;
  SealHeader(header, Bytes(page).subspan(kPageHeaderBytes));
  header.segment = 9;
  header.generation = 10;
  header.log_sequence = 11;
  SealStamp(header);
  StoreHeader(header, absl::MakeSpan(page));
  golden::Expect("page_header.hex", "a sealed and stamped page: 128-byte header, 300 bytes", page);
}

TEST(Golden, WireMessages) {
  golden::Expect("wire_put.hex", "durable put of two raw blocks, four slots each",
                 testing::PutMessage());
  golden::Expect("wire_get.hex", "waiting get of one packed block", testing::GetMessage());
  golden::Expect("wire_lookup.hex", "look-up of three blocks, stop at the first gap",
                 testing::LookupMessage());
  golden::Expect("wire_reply.hex", "reply with a hit from NVMe and a miss",
                 testing::ReplyMessage());
}

TEST(Golden, Identities) {
  const auto gqa = Layout::Make(testing::GqaIdentity());
  const auto hybrid = Layout::Make(testing::HybridIdentity());
  const auto mla = Layout::Make(testing::MlaIdentity());
  ASSERT_TRUE(gqa.ok() && hybrid.ok() && mla.ok());
  golden::Expect("identity_gqa.hex", "canonical form of a GQA identity", AsBytes(gqa->canonical()));
  golden::Expect("identity_hybrid.hex", "canonical form of an identity with two layer groups",
                 AsBytes(hybrid->canonical()));
  golden::Expect("identity_mla.hex", "canonical form of an MLA identity",
                 AsBytes(mla->canonical()));
  ByteWriter hashes;
  for (const auto* layout : {&*gqa, &*hybrid, &*mla}) hashes.WriteBytes(layout->hash().bytes);
  golden::Expect("identity_hashes.hex", "SHA-256 of the three canonical forms",
                 AsBytes(hashes.str()));
}

TEST(Golden, BlockKeys) {
  ClusterSecret secret;
  for (size_t i = 0; i < secret.bytes.size(); ++i) secret.bytes[i] = static_cast<uint8_t>(i);
  const IdentityHash identity = Layout::Make(testing::GqaIdentity())->hash();
  ByteWriter out;
  out.Write(secret.fingerprint());
  out.Write(TenantPrefix("acme"));
  const Digest digest = DigestOf(AsBytes("page 1"));
  out.WriteBytes(digest.bytes);
  for (const char* tenant : {"acme", ""}) {
    const KeyDeriver deriver(secret, tenant, identity);
    for (uint32_t part : {0u, 1u, 0x01020304u}) {
      out.WriteBytes(deriver.Derive(digest, part).bytes);
    }
  }
  golden::Expect("block_keys.hex",
                 "fingerprint, tenant prefix, digest; keys of parts 0, 1, 0x01020304 for tenants "
                 "\"acme\" and \"\"",
                 AsBytes(out.str()));
}

TEST(Golden, Hashes) {
  ByteWriter out;
  const std::string text(1000, 'c');
  for (size_t size : {0u, 1u, 16u, 17u, 128u, 240u, 241u, 1000u}) {
    out.Write(Xxh3(AsBytes(text).subspan(0, size)));
    out.Write(
        Xxh3(AsBytes(text).subspan(0, size / 2), AsBytes(text).subspan(size / 2, size - size / 2)));
  }
  golden::Expect("xxh3.hex", "XXH3-64 of 0 to 1000 times 'c', whole and in two spans",
                 AsBytes(out.str()));
}

TEST(Golden, RandomNumbers) {
  ByteWriter out;
  SplitMix64 mix(1234567);
  for (int i = 0; i < 8; ++i) out.Write(mix.Next());
  Rng rng(42);
  for (int i = 0; i < 16; ++i) out.Write(rng.Next());
  for (uint64_t bound : {1ull, 2ull, 10ull, 1000003ull}) out.Write(rng.Below(bound));
  golden::Expect("rng.hex", "SplitMix64(1234567) x 8, xoshiro256**(42) x 16, Below(1, 2, 10, ..)",
                 AsBytes(out.str()));
}

// The published first numbers of SplitMix64 with seed 1234567, so that the file above is known to
// be the named algorithm and not merely stable.
TEST(Golden, SplitMixIsThePublishedAlgorithm) {
  SplitMix64 mix(1234567);
  EXPECT_EQ(mix.Next(), 6457827717110365317u);
  EXPECT_EQ(mix.Next(), 3203168211198807973u);
  EXPECT_EQ(mix.Next(), 9817491932198370423u);
}

// FIPS 180-2, "abc".
TEST(Golden, Sha256IsThePublishedAlgorithm) {
  EXPECT_EQ(Hex(Sha256Of(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace crumb

int main(int argc, char** argv) { return crumb::golden::Main(argc, argv); }
