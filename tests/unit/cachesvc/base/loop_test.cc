// The loop turn by turn, as the simulator drives it: order of a turn, budgets, timers.
#include "cachesvc/base/loop.h"

#include <gtest/gtest.h>

#include <iterator>
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

TEST(Loop, CountsTheTimeOfTurnsThatFoundWork) {
  // Three turns of 5 us with work, two of 100 us without, one of 7 us with, then the end.
  struct Script final : public Poller {
    explicit Script(FakeClock* clock_in, Loop* loop_in) : clock(clock_in), loop(loop_in) {}
    int Poll() override {
      constexpr uint64_t kTook[] = {5, 5, 5, 100, 100, 7, 9};
      constexpr int kFound[] = {1, 1, 1, 0, 0, 1, 0};
      clock->now += kTook[turn];
      if (turn + 1 == std::size(kTook)) loop->Stop();
      return kFound[turn++];
    }
    int RunReady() override { return 0; }
    int wake_fd() const override { return -1; }
    bool Arm() override { return false; }  // never sleeps
    uint64_t next_timer_us() const override { return UINT64_MAX; }
    FakeClock* clock;
    Loop* loop;
    size_t turn = 0;
  };
  FakeClock clock;
  Loop loop(clock);
  Script script(&clock, &loop);
  loop.AddPoller(&script);
  EXPECT_EQ(loop.busy_us(), 0u);
  loop.Run(0);
  EXPECT_EQ(loop.busy_us(), 3u * 5 + 7);
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
