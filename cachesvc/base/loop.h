// The shard's event loop: mailbox, pollers, timers, sleep. One thread runs it; only Post and
// Stop may be called from others. In the simulator nobody calls Run: the test calls Turn.
#ifndef CRUMB_CACHESVC_BASE_LOOP_H_
#define CRUMB_CACHESVC_BASE_LOOP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/mailbox.h"

namespace crumb {

// Something that makes progress on the shard thread. Poll only queues completions inside the
// poller's owner; work that becomes ready runs in RunReady, after all pollers of the turn.
class Poller {
 public:
  virtual ~Poller() = default;
  // Returns how many events were handled (0 = idle). Bounded by its own budget.
  virtual int Poll() = 0;
  // Work made ready by the polls of this turn, then submissions. Returns work done.
  virtual int RunReady() = 0;
  // fd that becomes readable when Poll has something to do; -1 if it must be polled while busy.
  virtual int wake_fd() const = 0;
  // Called before sleeping; false means "do not sleep, poll again" (UCX arm).
  virtual bool Arm() = 0;
  // False: what is under way takes longer than a spin, and its worker wants the processor.
  virtual bool WorthSpinning() const { return true; }
  // Absolute time of the next timer of this poller; UINT64_MAX if none.
  virtual uint64_t next_timer_us() const = 0;
};

class Loop {
 public:
  explicit Loop(const Clock& clock);
  ~Loop();

  // REQUIRES: before Run; the poller outlives the loop's last turn.
  void AddPoller(Poller* poller);

  // Any thread. False if the mailbox is full (answer busy). The task runs on the loop thread.
  bool Post(Task task);

  // One turn; returns the amount of work done. Loop thread (or the simulator).
  int Turn();
  // Turns until Stop; sleeps on epoll when idle for spin_us. WHY it spins at all: a wake-up costs
  // as much as a small request. Where spinning finds nothing it is given up for a while.
  void Run(uint32_t spin_us);
  // Any thread; idempotent.
  void Stop();
  // Loop thread: how long Run's turns that found work took, together.
  uint64_t busy_us() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_LOOP_H_
