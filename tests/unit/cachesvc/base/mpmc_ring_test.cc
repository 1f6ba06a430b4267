// The ring and the mailbox as one thread sees them.
#include "cachesvc/base/mpmc_ring.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "cachesvc/base/mailbox.h"

namespace crumb {
namespace {

bool Readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

void AddOne(void* arg) { ++*static_cast<int*>(arg); }

TEST(MpmcRing, IsFirstInFirstOutAndBounded) {
  MpmcRing<int> ring(3);
  EXPECT_EQ(ring.capacity(), 4u);
  int value = 0;
  EXPECT_FALSE(ring.Pop(&value));
  for (int lap = 0; lap < 5; ++lap) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.Push(10 * lap + i));
    EXPECT_FALSE(ring.Push(99));
    EXPECT_TRUE(ring.MaybeReady());
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.Pop(&value));
      EXPECT_EQ(value, 10 * lap + i);
    }
    EXPECT_FALSE(ring.Pop(&value));
    EXPECT_FALSE(ring.MaybeReady());
  }
}

TEST(Mailbox, WakesOnlyAnAnnouncedSleeper) {
  Mailbox mailbox(4);
  int ran = 0;
  EXPECT_TRUE(mailbox.Push({AddOne, &ran}));
  EXPECT_FALSE(Readable(mailbox.wake_fd()));  // nobody sleeps
  EXPECT_FALSE(mailbox.PrepareSleep());       // there is something to pop
  Task task;
  ASSERT_TRUE(mailbox.Pop(&task));
  task.run(task.arg);
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(mailbox.PrepareSleep());
  EXPECT_FALSE(Readable(mailbox.wake_fd()));
  EXPECT_TRUE(mailbox.Push({AddOne, &ran}));
  EXPECT_TRUE(Readable(mailbox.wake_fd()));
  mailbox.FinishSleep();
  EXPECT_FALSE(Readable(mailbox.wake_fd()));
}

TEST(Mailbox, RefusesWhenFull) {
  Mailbox mailbox(2);
  int ran = 0;
  EXPECT_TRUE(mailbox.Push({AddOne, &ran}));
  EXPECT_TRUE(mailbox.Push({AddOne, &ran}));
  EXPECT_FALSE(mailbox.Push({AddOne, &ran}));
}

TEST(Mailbox, WakeEndsASleepWithoutATask) {
  Mailbox mailbox(2);
  mailbox.Wake();
  EXPECT_FALSE(Readable(mailbox.wake_fd()));
  EXPECT_TRUE(mailbox.PrepareSleep());
  mailbox.Wake();
  EXPECT_TRUE(Readable(mailbox.wake_fd()));
  mailbox.FinishSleep();
}

}  // namespace
}  // namespace crumb
