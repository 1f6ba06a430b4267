// The ring itself under pressure: more results than its completion queue holds. One thread; skipped
// where the kernel refuses io_uring.
#include "storage/device/uring_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>

#include "storage/device/aligned_buffer.h"
#include "storage/device/device_fd.h"

namespace crumb {
namespace {

constexpr uint32_t kBlock = 4096;

// Nobody reaps while ten times the queue's length completes: the kernel keeps what overflows and
// every result still comes, once.
TEST(UringRingTest, ResultsBeyondTheCompletionQueueAreNotLost) {
  std::string pattern = "/tmp/crumb-ring-XXXXXX";
  const DeviceFd file(::mkostemp(pattern.data(), O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  ::unlink(pattern.c_str());
  ASSERT_EQ(::ftruncate(file.get(), 1 << 20), 0);
  absl::StatusOr<std::unique_ptr<Ring>> ring = MakeUringRing(file.get(), 4);
  if (!ring.ok()) GTEST_SKIP() << ring.status();
  AlignedBuffer buffer(1 << 20);
  constexpr uint64_t kOperations = 80;
  uint64_t prepared = 0, taken = 0;
  for (int turn = 0; turn < 1000 && taken < kOperations; ++turn) {
    while (prepared < kOperations &&
           (*ring)->Prepare({.op = prepared % 2 == 0 ? IoOp::kWrite : IoOp::kRead,
                             .offset = prepared * kBlock,
                             .data = buffer.data() + prepared * kBlock,
                             .bytes = kBlock,
                             .user_data = prepared})) {
      ++prepared;
    }
    const int now = (*ring)->Submit();
    if (now == -EBUSY) break;  // older kernels push back instead
    ASSERT_GE(now, 0);
    taken += static_cast<uint64_t>(now);
  }
  EXPECT_GT(taken, 8u);  // the completion queue has 8 places
  std::map<uint64_t, int> seen;
  while (seen.size() < taken) {
    std::array<RingResult, 64> results;
    const size_t count = (*ring)->Reap(absl::MakeSpan(results));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(results[i].result, static_cast<int32_t>(kBlock));
      ASSERT_TRUE(seen.emplace(results[i].user_data, 1).second) << "twice";
    }
    if (count > 0) continue;
    pollfd entry = {(*ring)->wake_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1) << "lost " << taken - seen.size();
  }
  EXPECT_EQ(seen.size(), taken);
}

}  // namespace
}  // namespace crumb
