// A rig whose layout has windows, and chains of pages in it: sink 16 tokens (the first page),
// recent 32 (two pages of 16).
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_WINDOWED_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_WINDOWED_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {

inline constexpr uint64_t kRawSlot = 12 << 10;
inline constexpr uint64_t kPackedSlot = 4 << 10;

inline RigOptions Windowed(uint64_t nvme_bytes = 0) {
  RigOptions options;
  options.windows = {.on = true, .sink_tokens = 16, .recent_tokens = 32};
  options.nvme_bytes = nvme_bytes;
  return options;
}

// Page `at` of a chain is key `first` + at; each names the one before it.
inline WireBlockReply PutAt(Rig& rig, uint64_t first, uint64_t at, uint16_t flags = 0) {
  rig.worker().Fill(0, PageOf(first + at));
  BlockSpec block{.digest = DigestNumber(first + at),
                  .token_start = static_cast<uint32_t>(at) * kTokens};
  if (at > 0) block.parent = DigestNumber(first + at - 1);
  return rig.Ask({.type = WireType::kPut, .blocks = {block}, .flags = flags});
}

inline void PutChain(Rig& rig, uint64_t first, uint64_t pages) {
  for (uint64_t at = 0; at < pages; ++at) {
    ASSERT_EQ(PutAt(rig, first, at).result, BlockResult::kOk) << at;
  }
}

// One letter per page: r raw, 4 int4, 3 k3v2, 2 int2, . missing.
inline std::string Precisions(Rig& rig, uint64_t first, uint64_t pages) {
  std::string out;
  for (uint64_t at = 0; at < pages; ++at) {
    const WireBlockReply reply = rig.Lookup(first + at);
    out += reply.result == BlockResult::kOk ? "r432"[static_cast<size_t>(reply.precision)] : '.';
  }
  return out;
}

inline uint64_t Demotions(const Rig& rig, DemotionReason reason) {
  return rig.engine->stats().demotions[static_cast<size_t>(reason)];
}

// A page as it lies in the tier, without the tier's own stamp.
inline std::vector<uint8_t> StoredPage(Rig& rig, uint64_t key) {
  std::vector<uint8_t> page;
  EXPECT_EQ(rig.Get(key, &page, PageForm::kPage).result, BlockResult::kOk) << key;
  return page;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_WINDOWED_H_
