// Every truncation, extension and field mutation of wire messages and identities, plus random
// damage from fixed seeds: the parsers answer, never read outside, and accept only what is
// canonical. Run under ASan and UBSan.
#include <gtest/gtest.h>

#include <memory>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "cachesvc/base/wire.h"
#include "tests/unit/cachesvc/base/identity_samples.h"
#include "tests/unit/cachesvc/base/wire_samples.h"

namespace crumb {
namespace {

using testing::GetMessage;
using testing::GqaIdentity;
using testing::HybridIdentity;
using testing::LookupMessage;
using testing::MlaIdentity;
using testing::PutMessage;
using testing::ReplyMessage;

// An exact heap copy, so that ASan sees the first byte read past the end.
struct Exact {
  explicit Exact(Bytes bytes) : size(bytes.size()), data(std::make_unique<uint8_t[]>(size)) {
    if (size > 0) std::memcpy(data.get(), bytes.data(), size);
  }
  Bytes bytes() const { return {data.get(), size}; }
  size_t size;
  std::unique_ptr<uint8_t[]> data;
};

// Parses both ways and touches everything that the parser offers.
bool TouchWire(Bytes message) {
  const Exact copy(message);
  uint64_t sum = 0;
  WireRequest request;
  const bool is_request = ParseRequest(copy.bytes(), &request) == WireCheck::kOk;
  for (uint32_t i = 0; is_request && i < request.header.block_count; ++i) {
    sum += request.block(i).value_bytes;
    for (uint32_t j = 0; j < request.header.slots_per_block; ++j) sum += request.slot(i, j);
  }
  WireReply reply;
  const bool is_reply = ParseReply(copy.bytes(), &reply) == WireCheck::kOk;
  for (uint32_t i = 0; is_reply && i < reply.header.block_count; ++i) {
    sum += reply.block(i).checksum;
  }
  EXPECT_FALSE(is_request && is_reply) << sum;
  return is_request || is_reply;
}

std::vector<std::vector<uint8_t>> WireSamples() {
  return {PutMessage(), GetMessage(), LookupMessage(), ReplyMessage()};
}

TEST(WireFuzz, EveryTruncationAndExtensionIsRefused) {
  for (const auto& sample : WireSamples()) {
    ASSERT_TRUE(TouchWire(sample));
    for (size_t size = 0; size < sample.size(); ++size) {
      EXPECT_FALSE(TouchWire(Bytes(sample.data(), size)));
    }
    std::vector<uint8_t> longer = sample;
    longer.push_back(0);
    EXPECT_FALSE(TouchWire(longer));
  }
}

TEST(WireFuzz, EveryTruncationIsRefusedEvenWhenSealedAgain) {
  for (const auto& sample : WireSamples()) {
    for (size_t size = sizeof(WireHeader); size < sample.size(); ++size) {
      std::vector<uint8_t> cut(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(size));
      FinishWireMessage(absl::MakeSpan(cut));
      EXPECT_FALSE(TouchWire(cut));
    }
  }
}

TEST(WireFuzz, EveryChangedByteIsRefused) {
  for (const auto& sample : WireSamples()) {
    for (size_t i = 0; i < sample.size(); ++i) {
      for (int flip : {0x01, 0x80, 0xff}) {
        std::vector<uint8_t> changed = sample;
        changed[i] = static_cast<uint8_t>(changed[i] ^ flip);
        EXPECT_FALSE(TouchWire(changed)) << "byte " << i;
      }
    }
  }
}

// With a fresh checksum the fields themselves must hold the line.
TEST(WireFuzz, EveryResealedFieldMutationIsHandled) {
  for (const auto& sample : WireSamples()) {
    for (size_t i = 0; i < sample.size(); ++i) {
      for (int value = 0; value < 256; ++value) {
        std::vector<uint8_t> changed = sample;
        changed[i] = static_cast<uint8_t>(value);
        FinishWireMessage(absl::MakeSpan(changed));
        TouchWire(changed);
      }
    }
  }
}

TEST(WireFuzz, RandomDamageSealedAgainIsHandled) {
  Rng rng(20240607);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> changed = WireSamples()[rng.Below(4)];
    for (uint64_t n = 1 + rng.Below(8); n > 0; --n) {
      changed[rng.Below(changed.size())] = static_cast<uint8_t>(rng.Next());
    }
    if (rng.Chance(1, 4)) changed.resize(sizeof(WireHeader) + rng.Below(4096));
    FinishWireMessage(absl::MakeSpan(changed));
    TouchWire(changed);
  }
}

// PROMISE under test: whatever is accepted has exactly the canonical form that was given.
bool TouchIdentity(Bytes canonical) {
  const Exact copy(canonical);
  const auto layout = Layout::FromCanonical(copy.bytes());
  if (!layout.ok()) return false;
  EXPECT_EQ(AsBytes(layout->canonical()), copy.bytes());
  EXPECT_EQ(layout->hash().bytes, Sha256Of(copy.bytes()));
  EXPECT_GT(layout->part_count(), 0u);
  return true;
}

std::vector<std::string> IdentitySamples() {
  return {Layout::Make(GqaIdentity())->canonical(), Layout::Make(HybridIdentity())->canonical(),
          Layout::Make(MlaIdentity())->canonical()};
}

TEST(IdentityFuzz, EveryTruncationAndExtensionIsRefused) {
  for (const std::string& sample : IdentitySamples()) {
    ASSERT_TRUE(TouchIdentity(AsBytes(sample)));
    for (size_t size = 0; size < sample.size(); ++size) {
      EXPECT_FALSE(TouchIdentity(AsBytes(sample).subspan(0, size)));
    }
    EXPECT_FALSE(TouchIdentity(AsBytes(sample + '\0')));
  }
}

TEST(IdentityFuzz, EveryByteMutationIsHandled) {
  for (const std::string& sample : IdentitySamples()) {
    for (size_t i = 0; i < sample.size(); ++i) {
      for (int value = 0; value < 256; value += 3) {
        std::string changed = sample;
        changed[i] = static_cast<char>(value);
        TouchIdentity(AsBytes(changed));
      }
    }
  }
}

TEST(IdentityFuzz, RandomDamageIsHandled) {
  Rng rng(42);
  const std::vector<std::string> samples = IdentitySamples();
  for (int round = 0; round < 20000; ++round) {
    std::string changed = samples[rng.Below(samples.size())];
    for (uint64_t n = 1 + rng.Below(6); n > 0; --n) {
      changed[rng.Below(changed.size())] = static_cast<char>(rng.Next());
    }
    TouchIdentity(AsBytes(changed));
  }
  EXPECT_FALSE(TouchIdentity(AsBytes(std::string(1 << 20, 'x'))));
}

TEST(PageFuzz, EveryTruncationAndByteMutationIsRefused) {
  std::vector<uint8_t> page(kPageHeaderBytes + 256);
  for (size_t i = kPageHeaderBytes; i < page.size(); ++i) page[i] = static_cast<uint8_t>(i);
  PageHeader header;
  header.token_count = 64;
  header.payload_bytes = 256;
  SealHeader(header, Bytes(page).subspan(kPageHeaderBytes));
  StoreHeader(header, absl::MakeSpan(page));
  ASSERT_EQ(CheckPage(page), PageCheck::kOk);
  for (size_t size = 0; size < page.size(); ++size) {
    EXPECT_NE(CheckPage(Exact(Bytes(page.data(), size)).bytes()), PageCheck::kOk);
  }
  for (size_t i = 0; i < page.size(); ++i) {
    if (i >= 96 && i < kPageHeaderBytes) continue;  // the tier stamp has its own checksum
    std::vector<uint8_t> changed = page;
    changed[i] = static_cast<uint8_t>(changed[i] ^ 0x10);
    EXPECT_NE(CheckPage(changed), PageCheck::kOk) << "byte " << i;
  }
}

}  // namespace
}  // namespace crumb
