// HostQueue: jobs run off the owner's thread, each token comes back once, full means false.
#include "gpu/device/host_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <semaphore>
#include <set>
#include <thread>
#include <vector>

namespace crumb {
namespace {

// Waits on the queue's descriptor, never on a clock, until `count` tokens came back.
std::vector<uint64_t> Collect(HostQueue& queue, size_t count) {
  std::vector<uint64_t> tokens;
  while (tokens.size() < count) {
    uint64_t some[4];
    const size_t found = queue.Poll(absl::MakeSpan(some));
    tokens.insert(tokens.end(), some, some + found);
    if (found > 0) continue;
    pollfd fd{queue.wake_fd(), POLLIN, 0};
    EXPECT_GE(poll(&fd, 1, -1), 0);
  }
  return tokens;
}

struct Cell {
  std::thread::id thread;
  uint32_t worker = 0;
  int runs = 0;
};

TEST(HostQueueTest, EveryJobRunsOnceOffTheOwnersThreadAndItsTokenComesBack) {
  HostQueue queue({.threads = 3, .jobs_max = 64});
  EXPECT_EQ(queue.worker_count(), 3u);
  std::vector<Cell> cells(64);
  for (size_t i = 0; i < cells.size(); ++i) {
    const DeviceJob job{.run =
                            [](void* arg, uint32_t worker) noexcept {
                              auto* cell = static_cast<Cell*>(arg);
                              cell->thread = std::this_thread::get_id();
                              cell->worker = worker;
                              ++cell->runs;
                            },
                        .arg = &cells[i],
                        .token = 1000 + i};
    ASSERT_TRUE(queue.Submit(job));
  }
  const std::vector<uint64_t> tokens = Collect(queue, cells.size());
  EXPECT_EQ(std::set<uint64_t>(tokens.begin(), tokens.end()).size(), cells.size());
  EXPECT_EQ(queue.in_flight(), 0u);
  for (const Cell& cell : cells) {
    EXPECT_EQ(cell.runs, 1);
    EXPECT_LT(cell.worker, 3u);
    EXPECT_NE(cell.thread, std::this_thread::get_id());
  }
}

TEST(HostQueueTest, AFullQueueRefusesAtOnceAndRecovers) {
  std::binary_semaphore gate(0);
  HostQueue queue({.threads = 1, .jobs_max = 2});
  const DeviceJob job{
      .run = [](void* arg,
                uint32_t) noexcept { static_cast<std::binary_semaphore*>(arg)->acquire(); },
      .arg = &gate,
      .token = 1};
  ASSERT_TRUE(queue.Submit(job));
  ASSERT_TRUE(queue.Submit(job));
  EXPECT_FALSE(queue.Submit(job));
  EXPECT_EQ(queue.in_flight(), 2u);
  gate.release();
  Collect(queue, 1);
  EXPECT_TRUE(queue.Submit(job));
  gate.release();
  Collect(queue, 1);
  gate.release();
  Collect(queue, 1);
  EXPECT_EQ(queue.in_flight(), 0u);
}

}  // namespace
}  // namespace crumb
