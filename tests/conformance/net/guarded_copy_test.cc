// A copy from memory that is taken away ends with false, on any thread and as often as it happens;
// a SIGBUS of anybody else still ends the process. Threads of their own, as a pool's are.
#include "cachesvc/net/guarded_copy.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/conformance/net/shared_memory.h"

namespace crumb {
namespace {

constexpr size_t kBytes = 64 * 1024;

TEST(GuardedCopy, CopiesWhatIsThere) {
  ASSERT_TRUE(InstallCopyGuard());
  SharedMemory memory(kBytes, SharedKind::kFile);
  std::memset(memory.bytes().data(), 7, kBytes);
  std::vector<uint8_t> local(kBytes);
  EXPECT_TRUE(GuardedCopy(local.data(), memory.bytes().data(), kBytes));
  EXPECT_EQ(local, std::vector<uint8_t>(kBytes, 7));
}

TEST(GuardedCopy, MemoryThatWasTakenAwayIsNoticedBothWays) {
  ASSERT_TRUE(InstallCopyGuard());
  SharedMemory memory(kBytes, SharedKind::kFile);
  std::memset(memory.bytes().data(), 7, kBytes);
  ASSERT_EQ(ftruncate(memory.fd(), 4096), 0);
  std::vector<uint8_t> local(kBytes, 1);
  for (int round = 0; round < 100; ++round) {
    EXPECT_FALSE(GuardedCopy(local.data(), memory.bytes().data(), kBytes));
    EXPECT_FALSE(GuardedCopy(memory.bytes().data(), local.data(), kBytes));
    EXPECT_TRUE(GuardedCopy(local.data(), memory.bytes().data(), 4096));
  }
  ASSERT_EQ(ftruncate(memory.fd(), kBytes), 0);
  EXPECT_TRUE(GuardedCopy(local.data(), memory.bytes().data(), kBytes));
}

// Pool threads have all signals blocked; a blocked SIGBUS would end the process.
TEST(GuardedCopy, ThreadsThatBlockSignalsAreSafeToo) {
  ASSERT_TRUE(InstallCopyGuard());
  SharedMemory memory(kBytes, SharedKind::kFile);
  ASSERT_EQ(ftruncate(memory.fd(), 0), 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
      std::vector<uint8_t> local(kBytes);
      for (int round = 0; round < 200; ++round) {
        EXPECT_FALSE(GuardedCopy(local.data(), memory.bytes().data(), kBytes));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using GuardedCopyDeathTest = ::testing::Test;

TEST(GuardedCopyDeathTest, AnotherSigbusStillEndsTheProcess) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  ASSERT_TRUE(InstallCopyGuard());
  EXPECT_EXIT(
      {
        SharedMemory memory(kBytes, SharedKind::kFile);
        if (ftruncate(memory.fd(), 0) != 0) _exit(1);
        *const_cast<volatile uint8_t*>(memory.bytes().data()) = 1;
      },
      [](int status) { return status != 0; }, "");
  EXPECT_EXIT(
      raise(SIGBUS), [](int status) { return status != 0; }, "");
}

}  // namespace
}  // namespace crumb
