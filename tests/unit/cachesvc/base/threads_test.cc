// Ring, mailbox, worker pool and loop with real threads; also run under TSan. No sleeps: threads
// meet through the primitives under test, and every wait ends because the tested promise holds.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "cachesvc/base/loop.h"
#include "cachesvc/base/mailbox.h"
#include "cachesvc/base/mpmc_ring.h"
#include "cachesvc/base/worker_pool.h"

namespace crumb {
namespace {

constexpr int kWaitMs = 20'000;  // only a lost wake-up gets this far

bool WaitReadable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, kWaitMs) == 1;
}

TEST(MpmcRingThreads, EveryValueArrivesOnce) {
  constexpr uint64_t kPerProducer = 5000, kProducers = 3, kConsumers = 2;
  MpmcRing<uint64_t> ring(64);
  std::atomic<uint64_t> popped{0}, sum{0};
  std::vector<std::thread> threads;
  for (uint64_t p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (uint64_t i = 0; i < kPerProducer; ++i) {
        while (!ring.Push(p * kPerProducer + i)) std::this_thread::yield();
      }
    });
  }
  for (uint64_t c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&] {
      uint64_t value;
      while (popped.load() < kProducers * kPerProducer) {
        if (ring.Pop(&value)) {
          sum += value;
          ++popped;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const uint64_t n = kProducers * kPerProducer;
  EXPECT_EQ(popped.load(), n);
  EXPECT_EQ(sum.load(), n * (n - 1) / 2);
}

void AddOne(void* arg) { ++*static_cast<uint64_t*>(arg); }

// The consumer sleeps whenever it may; a lost wake-up would leave it asleep.
TEST(MailboxThreads, NoWakeUpIsLost) {
  constexpr uint64_t kPerProducer = 3000, kProducers = 3;
  Mailbox mailbox(16);
  uint64_t ran = 0;
  std::vector<std::thread> producers;
  for (uint64_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&] {
      for (uint64_t i = 0; i < kPerProducer; ++i) {
        while (!mailbox.Push({AddOne, &ran})) std::this_thread::yield();
      }
    });
  }
  while (ran < kPerProducer * kProducers) {
    Task task;
    while (mailbox.Pop(&task)) task.run(task.arg);
    if (ran == kPerProducer * kProducers || !mailbox.PrepareSleep()) continue;
    ASSERT_TRUE(WaitReadable(mailbox.wake_fd())) << "lost wake-up after " << ran;
    mailbox.FinishSleep();
  }
  for (std::thread& producer : producers) producer.join();
}

struct Square {
  uint64_t value = 0;
  uint32_t worker = 0;
  static void Run(void* arg, uint32_t worker) noexcept {
    auto* self = static_cast<Square*>(arg);
    self->value *= self->value;
    self->worker = worker;
  }
};

TEST(WorkerPoolThreads, RunsEveryJobOnceAndReportsItsToken) {
  constexpr size_t kJobs = 5000, kInFlight = 32;
  WorkerPool pool(3, kInFlight);
  EXPECT_EQ(pool.threads(), 3u);
  std::vector<Square> squares(kJobs);
  std::vector<int> seen(kJobs, 0);
  size_t submitted = 0, finished = 0;
  while (finished < kJobs) {
    while (submitted < kJobs) {
      squares[submitted].value = submitted;
      if (!pool.Submit({Square::Run, &squares[submitted], submitted})) break;
      ++submitted;
      ASSERT_LE(pool.in_flight(), kInFlight);
    }
    ASSERT_TRUE(WaitReadable(pool.wake_fd()));
    uint64_t tokens[7];
    const size_t count = pool.Poll(tokens);
    for (size_t i = 0; i < count; ++i) ++seen[tokens[i]];
    finished += count;
  }
  EXPECT_EQ(pool.in_flight(), 0u);
  for (size_t i = 0; i < kJobs; ++i) {
    EXPECT_EQ(seen[i], 1);
    EXPECT_EQ(squares[i].value, i * i);
    EXPECT_LT(squares[i].worker, 3u);
  }
}

// Every job makes the fd readable at most once: else a sleeping loop would spin. A worker that is
// stopped between taking its place among the tokens and filling it makes an owner that never arms
// come back until it goes on: so one of a few tries must hold.
TEST(WorkerPoolThreads, WakesAtMostOncePerJob) {
  size_t wake_ups = 0, finished = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    WorkerPool pool(2, 8);
    std::vector<Square> squares(8);
    wake_ups = finished = 0;
    for (size_t round = 1; round <= 200; ++round) {
      for (Square& square : squares) ASSERT_TRUE(pool.Submit({Square::Run, &square, 1}));
      while (finished < round * squares.size()) {
        ASSERT_TRUE(WaitReadable(pool.wake_fd()));
        ++wake_ups;
        uint64_t tokens[3];
        finished += pool.Poll(tokens);
      }
    }
    if (wake_ups <= finished) break;
  }
  EXPECT_LE(wake_ups, finished);
}

// An owner that arms before it sleeps misses no job, and hears nothing while it does not sleep.
TEST(WorkerPoolThreads, AnOwnerThatArmsMissesNothing) {
  constexpr size_t kJobs = 5000, kInFlight = 4;
  WorkerPool pool(2, kInFlight);
  std::vector<Square> squares(kJobs);
  size_t submitted = 0, finished = 0;
  while (finished < kJobs) {
    while (submitted < kJobs && pool.Submit({Square::Run, &squares[submitted], submitted})) {
      ++submitted;
    }
    if (pool.Arm()) {
      ASSERT_TRUE(WaitReadable(pool.wake_fd()));
    }
    uint64_t tokens[3];
    finished += pool.Poll(tokens);
  }
  EXPECT_EQ(pool.in_flight(), 0u);
  EXPECT_EQ(pool.Poll({}), 0u);
  ASSERT_TRUE(pool.Arm());  // nothing is left to wake for, but perhaps one late write
}

TEST(WorkerPoolThreads, RefusesBeyondItsBoundAndDropsWhatIsQueuedAtTheEnd) {
  struct Gate {
    std::latch started{1}, release{1};
    std::atomic<int> ran{0};
    static void Run(void* arg, uint32_t) noexcept {
      auto* self = static_cast<Gate*>(arg);
      ++self->ran;
      self->started.count_down();
      self->release.wait();
    }
  } gate;
  auto pool = std::make_unique<WorkerPool>(1, 3);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(pool->Submit({Gate::Run, &gate, i}));
  EXPECT_FALSE(pool->Submit({Gate::Run, &gate, 3}));
  gate.started.wait();
  std::thread release([&] { gate.release.count_down(); });
  pool.reset();  // waits for the running job
  release.join();
  EXPECT_GE(gate.ran.load(), 1);
}

// A poller fed through an eventfd by another thread, as a transport is.
class FdPoller : public Poller {
 public:
  FdPoller() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FdPoller() override { close(fd_); }
  int Poll() override {
    eventfd_t value = 0;
    if (eventfd_read(fd_, &value) != 0) return 0;
    got_ += value;
    return 1;
  }
  int RunReady() override {
    if (got_ >= stop_at_ && loop_ != nullptr) loop_->Stop();
    return 0;
  }
  int wake_fd() const override { return fd_; }
  bool Arm() override { return ++arms_ % 3 != 0; }  // sometimes refuses
  uint64_t next_timer_us() const override { return UINT64_MAX; }
  void StopAt(Loop* loop, uint64_t count) {
    loop_ = loop;
    stop_at_ = count;
  }
  uint64_t got() const { return got_; }

 private:
  const int fd_;
  uint64_t got_ = 0, stop_at_ = 0, arms_ = 0;
  Loop* loop_ = nullptr;
};

TEST(LoopThreads, WakesForPollersTasksAndStop) {
  constexpr uint64_t kEvents = 2000;
  SteadyClock clock;
  FdPoller poller;
  Loop loop(clock);
  loop.AddPoller(&poller);
  poller.StopAt(&loop, kEvents);
  uint64_t ran = 0;
  std::thread events([&] {
    for (uint64_t i = 0; i < kEvents; ++i) {
      while (!loop.Post({AddOne, &ran})) std::this_thread::yield();
      (void)eventfd_write(poller.wake_fd(), 1);
    }
  });
  loop.Run(0);
  events.join();
  while (loop.Turn() > 0) continue;
  EXPECT_EQ(ran, kEvents);
  EXPECT_EQ(poller.got(), kEvents);
}

TEST(LoopThreads, StopFromOutsideEndsASleepingLoop) {
  for (int round = 0; round < 200; ++round) {
    SteadyClock clock;
    Loop loop(clock);
    std::thread runner([&] { loop.Run(0); });
    loop.Stop();
    runner.join();
  }
}

// Sleeps until its timer, then stops the loop: the sleep must end by itself, and not early.
class TimerPoller : public Poller {
 public:
  TimerPoller(const Clock& clock, Loop* loop) : clock_(clock), loop_(loop) {
    due_us_ = clock_.now_us() + 3000;
  }
  int Poll() override { return 0; }
  int RunReady() override {
    ++turns_;
    if (clock_.now_us() >= due_us_) loop_->Stop();
    return 0;
  }
  int wake_fd() const override { return -1; }
  bool Arm() override { return true; }
  uint64_t next_timer_us() const override { return due_us_; }
  int turns() const { return turns_; }

 private:
  const Clock& clock_;
  Loop* loop_;
  uint64_t due_us_;
  int turns_ = 0;
};

TEST(LoopThreads, SleepsUntilTheNextTimer) {
  SteadyClock clock;
  Loop loop(clock);
  TimerPoller poller(clock, &loop);
  loop.AddPoller(&poller);
  loop.Run(0);
  EXPECT_LE(poller.turns(), 100);  // it slept; it did not spin
}

}  // namespace
}  // namespace crumb
