// The loop turn by turn, as the simulator drives it: order of a turn, budgets, timers.
#include "cachesvc/base/loop.h"

#include <gtest/gtest.h>

#include <string>

namespace crumb {
namespace {

class FakeClock : public Clock {
 public:
  uint64_t now_us() const override { return now; }
  uint64_t now = 0;
};

class LoggingPoller : public Poller {
 public:
  LoggingPoller(std::string name, std::string* log) : name_(std::move(name)), log_(log) {}
  int Poll() override {
    *log_ += name_ + "p ";
    return 0;
  }
  int RunReady() override {
    *log_ += name_ + "r ";
    return 1;
  }
  int wake_fd() const override { return -1; }
  bool Arm() override { return true; }
  uint64_t next_timer_us() const override { return UINT64_MAX; }

 private:
  std::string name_;
  std::string* log_;
};

struct Entry {
  std::string* log;
  static void Run(void* arg) { *static_cast<Entry*>(arg)->log += "task "; }
};

TEST(Loop, ATurnRunsTasksThenAllPollsThenAllReadyWork) {
  FakeClock clock;
  std::string log;
  LoggingPoller a("a", &log), b("b", &log);
  Loop loop(clock);
  loop.AddPoller(&a);
  loop.AddPoller(&b);
  Entry entry{&log};
  ASSERT_TRUE(loop.Post({Entry::Run, &entry}));
  EXPECT_EQ(loop.Turn(), 3);
  EXPECT_EQ(log, "task ap bp ar br ");
}

TEST(Loop, RefusesTasksWhenFullAndRunsABoundedNumberPerTurn) {
  FakeClock clock;
  Loop loop(clock);
  std::string log;
  Entry entry{&log};
  size_t posted = 0;
  while (loop.Post({Entry::Run, &entry})) ASSERT_LT(++posted, 100000u);
  const int first = loop.Turn();
  EXPECT_GT(first, 0);
  EXPECT_LT(static_cast<size_t>(first), posted);
  size_t ran = static_cast<size_t>(first);
  while (int count = loop.Turn()) ran += static_cast<size_t>(count);
  EXPECT_EQ(ran, posted);
}

TEST(Loop, StopBeforeRunReturnsAtOnceAndRunsWhatWasPosted) {
  FakeClock clock;
  Loop loop(clock);
  std::string log;
  Entry entry{&log};
  ASSERT_TRUE(loop.Post({Entry::Run, &entry}));
  loop.Stop();
  loop.Stop();
  loop.Run(0);
  EXPECT_EQ(log, "task ");
}

}  // namespace
}  // namespace crumb
