// The engine with a worker that lends GPU memory and one that lends the host's. For gpu_*_test.cc.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_CORE_GPU_FIXTURE_H_
#define CRUMB_TESTS_UNIT_CACHESVC_CORE_GPU_FIXTURE_H_

#include <memory>
#include <vector>

#include "tests/unit/cachesvc/core/windowed.h"

namespace crumb::testing {

class EngineGpuTest : public ::testing::Test {
 protected:
  // Worker 0 lends GPU memory, worker 1 host memory.
  void Start(RigOptions options = {}) {
    if (options.hbm_bytes == 0) options.hbm_bytes = 2 << 20;
    options.gpu = &gpu_;
    gpu_.on = true;
    rig_ = std::make_unique<Rig>(options);
    gpu_.on = false;
    rig_->AddWorker({.session = 2});
  }
  RequestSpec Spec(WireType type, uint64_t key, uint32_t slot = 0) {
    return {.type = type, .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
  }
  WireBlockReply Put(uint64_t key, uint16_t flags = 0) {
    return rig_->Put(key, PageOf(key), flags);
  }
  // Into the worker's memory; the reply's checksum is of bytes that the host saw, or 0.
  WireBlockReply Get(uint64_t key, size_t worker = 0) {
    RequestSpec spec = Spec(WireType::kGet, key, 1);
    rig_->worker(worker).Fill(1, std::vector<uint8_t>(kRawBytes, 0xee));
    const WireBlockReply reply = rig_->Ask(spec, worker);
    if (reply.result == BlockResult::kOk) page_ = rig_->worker(worker).Read(1, reply.value_bytes);
    return reply;
  }
  void ExpectPage(uint64_t key, Tier tier, size_t worker = 0) {
    const WireBlockReply reply = Get(key, worker);
    ASSERT_EQ(reply.result, BlockResult::kOk) << key;
    EXPECT_EQ(reply.tier, tier) << key << ": " << ToString(reply.tier);
    EXPECT_EQ(page_, AfterLoss(PageOf(key), 4)) << key;
  }
  uint64_t Sent(WireType type, uint64_t key, uint32_t slot = 0) {
    const uint64_t id = rig_->worker().Send(Spec(type, key, slot));
    rig_->Settle();
    return id;
  }
  // A chain of pages 100 to 103, put by the GPU's worker but for the last: page 101 is being packed
  // by the GPU, which holds it.
  void HoldADemotion() {
    PutChain(*rig_, 100, 3);
    gpu_.mood.hold = true;
    rig_->worker(1).Fill(0, PageOf(103));
    RequestSpec put = Spec(WireType::kPut, 103);
    put.blocks[0].parent = DigestNumber(102);
    put.blocks[0].token_start = 3 * kTokens;
    EXPECT_EQ(rig_->Ask(put, 1).result, BlockResult::kOk);
  }
  EngineStats stats() const { return rig_->engine->stats(); }

  FakeGpu gpu_;
  std::unique_ptr<Rig> rig_;
  std::vector<uint8_t> page_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_UNIT_CACHESVC_CORE_GPU_FIXTURE_H_
