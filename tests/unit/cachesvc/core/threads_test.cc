// The engine with real worker threads: encoding, decoding, verifying and hashing happen off the
// shard while it evicts, writes and answers. What comes back must be right; TSan looks at the rest.
#include <gtest/gtest.h>
#include <poll.h>

#include "cachesvc/base/rng.h"
#include "gpu/device/host_queue.h"
#include "tests/unit/cachesvc/core/engine_fixture.h"

namespace crumb::testing {
namespace {

// Turns until every request is answered; sleeps only on the workers' descriptor.
void TurnUntilAnswered(Rig& rig, HostQueue& queue, size_t replies) {
  while (rig.worker().replies.size() < replies) {
    rig.Turn();
    if (queue.in_flight() == 0) continue;
    pollfd fd{queue.wake_fd(), POLLIN, 0};
    ASSERT_GE(::poll(&fd, 1, 1000), 0);
  }
}

TEST(EngineThreadsTest, PagesAreWholeWhileWorkersAndShardShareThem) {
  HostQueue queue({.threads = 3, .jobs_max = 32});
  RigOptions options;
  options.main_bytes = 64 << 10;
  options.staging_bytes = 1 << 20;
  options.nvme_bytes = 8 << 20;
  options.device_queue = &queue;
  Rig rig(options);
  Rng rng(1);
  size_t sent = 0;
  uint64_t hits = 0;
  for (int round = 0; round < 60; ++round) {
    std::map<uint64_t, std::pair<uint64_t, uint32_t>> gets;  // request -> key, slot
    for (uint32_t slot = 0; slot < 24; ++slot) {
      const uint64_t key = rng.Below(40);
      RequestSpec spec{.type = WireType::kGet,
                       .blocks = {{.digest = DigestNumber(key), .slot = slot}}};
      if (slot % 3 == 0) {
        spec.type = WireType::kPut;
        spec.flags = static_cast<uint16_t>(rng.Below(2) * kWireFlagDurable);
        rig.worker().Fill(slot, PageOf(key));
      } else if (slot % 3 == 1) {
        spec.form = PageForm::kPage;
      }
      const uint64_t id = rig.worker().Send(spec);
      ++sent;
      if (slot % 3 == 2) gets[id] = {key, slot};
    }
    TurnUntilAnswered(rig, queue, sent);
    for (const auto& [id, get] : gets) {
      const WireBlockReply reply = rig.worker().Answer(id);
      if (reply.result != BlockResult::kOk) continue;
      ++hits;
      ASSERT_EQ(rig.worker().Read(get.second), AfterLoss(PageOf(get.first), 4));
    }
  }
  EXPECT_GT(hits, 100u);
  while (queue.in_flight() > 0) rig.Turn();
}

}  // namespace
}  // namespace crumb::testing
