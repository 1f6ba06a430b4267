// The fd that a worker's event loop watches: raised, lowered, watched and timed.
#include "client/src/waker.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cachesvc/base/clock.h"

namespace crumb::client {
namespace {

bool Readable(int fd) {
  pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) == 1;
}

TEST(Waker, IsReadableBetweenRaiseAndLower) {
  Waker waker;
  ASSERT_TRUE(waker.Open().ok());
  EXPECT_FALSE(Readable(waker.fd()));
  waker.Raise();
  waker.Raise();
  EXPECT_TRUE(Readable(waker.fd()));
  EXPECT_TRUE(Readable(waker.fd()));
  waker.Lower();
  EXPECT_FALSE(Readable(waker.fd()));
  waker.Lower();
}

TEST(Waker, FollowsTheWatchedFdOnly) {
  Waker waker;
  ASSERT_TRUE(waker.Open().ok());
  const int first = ::eventfd(1, EFD_CLOEXEC);
  const int second = ::eventfd(0, EFD_CLOEXEC);
  waker.Watch(first);
  EXPECT_TRUE(Readable(waker.fd()));
  waker.Watch(second);
  EXPECT_FALSE(Readable(waker.fd()));
  waker.Watch(-1);
  ::close(first);
  ::close(second);
}

TEST(Waker, ForgetsAnFdThatItsOwnerClosed) {
  Waker waker;
  ASSERT_TRUE(waker.Open().ok());
  const int first = ::eventfd(1, EFD_CLOEXEC);
  waker.Watch(first);
  ::close(first);
  const int second = ::eventfd(1, EFD_CLOEXEC);
  waker.Watch(second);
  EXPECT_TRUE(Readable(waker.fd()));
  ::close(second);
}

TEST(Waker, TheTimerMakesItReadableAndCanBeTakenBack) {
  Waker waker;
  ASSERT_TRUE(waker.Open().ok());
  const SteadyClock clock;
  waker.SetTimer(clock.now_us() + 60'000'000);
  EXPECT_FALSE(Readable(waker.fd()));
  waker.SetTimer(1);  // long past
  EXPECT_TRUE(Readable(waker.fd()));
  waker.SetTimer(0);
  EXPECT_FALSE(Readable(waker.fd()));
}

}  // namespace
}  // namespace crumb::client
