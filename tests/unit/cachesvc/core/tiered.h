// A small pool before an NVMe tier on a memory device, and what its pages must answer.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_TIERED_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_TIERED_H_

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {

inline constexpr uint64_t kPages = 16;  // lossy pages that fit into memory

inline RigOptions Tiered(uint64_t nvme_bytes = 8 << 20) {
  RigOptions options;
  options.main_bytes = 64 << 10;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = nvme_bytes;
  return options;
}

inline const MemDevice::Survives kNothingSurvives = [](const MemDevice::Write&, uint64_t) {
  return false;
};

inline void FillMemory(Rig& rig, uint64_t first_key = 1000) {
  for (uint64_t key = first_key; key < first_key + kPages; ++key) rig.Put(key, PageOf(key));
}

inline void ExpectHit(Rig& rig, uint64_t key, Tier tier) {
  std::vector<uint8_t> got;
  const WireBlockReply reply = rig.Get(key, &got);
  ASSERT_EQ(reply.result, BlockResult::kOk) << key;
  EXPECT_EQ(reply.tier, tier) << key;
  EXPECT_EQ(got, AfterLoss(PageOf(key), 4)) << key;
}

inline void ExpectMiss(Rig& rig, uint64_t key) {
  std::vector<uint8_t> got;
  EXPECT_EQ(rig.Get(key, &got).result, BlockResult::kMiss) << key;
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_TIERED_H_
