// ProcessWatch over real processes: an end is told once, and a number given to another process is
// not mistaken for the first. Waits only for a descriptor.
#include "cachesvc/net/process_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace crumb {
namespace {

// A process that waits for its standard input to end.
class Waiter {
 public:
  Waiter() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, 0), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[0], 0);
    posix_spawn_file_actions_addclose(&actions, fds[1]);
    char name[] = "cat";
    char* argv[] = {name, nullptr};
    EXPECT_EQ(posix_spawnp(&pid_, name, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[0]);
    in_ = fds[1];
  }
  ~Waiter() { End(); }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(in_);
    pid_ = -1;
  }
  ProcessId id() const {
    ProcessId id = ProcessOf(static_cast<uint32_t>(pid_));
    return id;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
};

bool Readable(int fd, int timeout_ms) {
  pollfd wait = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

TEST(ProcessWatch, TellsAnEndOnce) {
  auto watch = ProcessWatch::Create(4);
  ASSERT_TRUE(watch.ok()) << watch.status();
  Waiter first, second;
  ASSERT_EQ((*watch)->Watch(1, first.id()), WatchResult::kWatched);
  ASSERT_EQ((*watch)->Watch(2, second.id()), WatchResult::kWatched);
  std::vector<uint32_t> gone, readable;
  EXPECT_FALSE(Readable((*watch)->fd(), 0));
  (*watch)->Take(&gone, &readable);
  EXPECT_TRUE(gone.empty());
  first.End();
  ASSERT_TRUE(Readable((*watch)->fd(), 20'000));
  (*watch)->Take(&gone, &readable);
  EXPECT_EQ(gone, std::vector<uint32_t>{1});
  gone.clear();
  (*watch)->Take(&gone, &readable);
  EXPECT_TRUE(gone.empty());
  EXPECT_FALSE(Readable((*watch)->fd(), 0));
  (*watch)->Forget(2);
  second.End();
  (*watch)->Take(&gone, &readable);
  EXPECT_TRUE(gone.empty()) << "forgotten";
}

TEST(ProcessWatch, KnowsAProcessByMoreThanItsNumber) {
  auto watch = ProcessWatch::Create(2);
  ASSERT_TRUE(watch.ok()) << watch.status();
  ProcessId self = SelfProcess();
  ASSERT_NE(self.host, 0u);
  ASSERT_NE(self.start, 0u);
  EXPECT_EQ((*watch)->Watch(0, self), WatchResult::kWatched);
  self.start += 1;  // the number was given to another since
  EXPECT_EQ((*watch)->Watch(0, self), WatchResult::kGone);
  self = SelfProcess();
  self.host += 1;
  EXPECT_EQ((*watch)->Watch(0, self), WatchResult::kUnwatchable);
  self = SelfProcess();
  self.pid = 0;
  EXPECT_EQ((*watch)->Watch(0, self), WatchResult::kUnwatchable);
  self.pid = UINT32_MAX;
  EXPECT_NE((*watch)->Watch(0, self), WatchResult::kWatched);
  Waiter dead;
  const ProcessId id = dead.id();
  dead.End();
  EXPECT_EQ((*watch)->Watch(0, id), WatchResult::kGone);
}

TEST(ProcessWatch, PassesTheLibrarysDescriptorOn) {
  auto watch = ProcessWatch::Create(2);
  ASSERT_TRUE(watch.ok()) << watch.status();
  int fds[2];
  ASSERT_EQ(pipe2(fds, 0), 0);
  ASSERT_TRUE((*watch)->AddLibrary(1, fds[0]).ok());
  EXPECT_FALSE(Readable((*watch)->fd(), 0));
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  EXPECT_TRUE(Readable((*watch)->fd(), 0));
  std::vector<uint32_t> gone, readable;
  (*watch)->Take(&gone, &readable);
  EXPECT_TRUE(gone.empty());
  EXPECT_EQ(readable, std::vector<uint32_t>{1});
  close(fds[0]);
  close(fds[1]);
  EXPECT_FALSE(Readable((*watch)->fd(), 0));
}

}  // namespace
}  // namespace crumb
