// The loop: turns while there is work, epoll when there is none. The loop thread owns everything
// but the mailbox and the stop flag.
#include "cachesvc/base/loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr size_t kMailboxTasksMax = 4096;  // requests_max of gRPC callers, several times over
constexpr int kTasksPerTurnMax = 256;      // so that a flood of tasks cannot starve the pollers
constexpr size_t kPollersMax = 16;
constexpr int kSleepMsMax = 60'000;  // an upper bound that nothing relies on

}  // namespace

struct Loop::Impl {
  explicit Impl(const Clock& clock_in)
      : clock(clock_in), mailbox(kMailboxTasksMax), epoll(epoll_create1(EPOLL_CLOEXEC)) {
    CRUMB_CHECK(epoll >= 0);
    Watch(mailbox.wake_fd());
  }
  ~Impl() { close(epoll); }

  void Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;  // level-triggered: pollers clear their fds themselves
    event.data.fd = fd;
    CRUMB_CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
  }

  int RunTasks(int budget) {
    int count = 0;
    Task task;
    while (count < budget && mailbox.Pop(&task)) {
      task.run(task.arg);
      ++count;
    }
    return count;
  }

  // Milliseconds until the next timer, rounded up; 0 if one is due.
  int SleepMs() const {
    uint64_t next = UINT64_MAX;
    for (const Poller* poller : pollers) next = std::min(next, poller->next_timer_us());
    if (next == UINT64_MAX) return kSleepMsMax;
    const uint64_t now = clock.now_us();
    if (next <= now) return 0;
    const uint64_t ms = (next - now - 1) / 1000 + 1;
    return ms < static_cast<uint64_t>(kSleepMsMax) ? static_cast<int>(ms) : kSleepMsMax;
  }

  bool ArmAll() {
    // Every poller is asked, also after a refusal: arming is harmless, skipping one is not.
    bool armed = true;
    for (Poller* poller : pollers) armed = poller->Arm() && armed;
    return armed;
  }

  bool WorthSpinning() const {
    return std::all_of(pollers.begin(), pollers.end(),
                       [](const Poller* poller) { return poller->WorthSpinning(); });
  }

  void Sleep() {
    if (!mailbox.PrepareSleep()) return;
    if (ArmAll() && !stop.load(std::memory_order_seq_cst)) {
      epoll_event events[kPollersMax + 1];
      const int count = epoll_wait(epoll, events, kPollersMax + 1, SleepMs());
      CRUMB_CHECK(count >= 0 || errno == EINTR);
    }
    mailbox.FinishSleep();
  }

  const Clock& clock;
  Mailbox mailbox;
  const int epoll;
  std::vector<Poller*> pollers;
  std::atomic<bool> stop{false};
  uint64_t busy_us = 0;
};

Loop::Loop(const Clock& clock) : impl_(std::make_unique<Impl>(clock)) {}
Loop::~Loop() = default;

void Loop::AddPoller(Poller* poller) {
  CRUMB_CHECK(poller != nullptr && impl_->pollers.size() < kPollersMax);
  if (const int fd = poller->wake_fd(); fd >= 0) impl_->Watch(fd);
  impl_->pollers.push_back(poller);
}

bool Loop::Post(Task task) { return impl_->mailbox.Push(task); }

int Loop::Turn() {
  int work = impl_->RunTasks(kTasksPerTurnMax);
  for (Poller* poller : impl_->pollers) work += poller->Poll();
  for (Poller* poller : impl_->pollers) work += poller->RunReady();
  return work;
}

// Whether the next idle moment is worth spinning, from how the last ones ended.
class SpinChoice {
 public:
  bool worth() const { return credit_ > 0; }
  void Found() { credit_ = std::min(credit_ + 2, kCreditMax); }
  void Wasted() { credit_ = std::max(credit_ - 1, 0); }
  void Slept() {  // without spinning
    if (++skipped_ < kSkips) return;
    skipped_ = 0;
    credit_ = 1;
  }

 private:
  static constexpr int kCreditMax = 8;
  static constexpr int kSkips = 64;
  int credit_ = kCreditMax;
  int skipped_ = 0;
};

void Loop::Run(uint32_t spin_us) {
  SpinChoice spin;
  bool spinning = false;
  uint64_t spin_until = 0;
  uint64_t before = impl_->clock.now_us();  // this turn
  // stop is seq_cst against the mailbox's sleeping flag: see Stop.
  while (!impl_->stop.load(std::memory_order_seq_cst)) {
    const bool found = Turn() > 0;
    const uint64_t now = impl_->clock.now_us();
    const uint64_t took = now - std::exchange(before, now);
    if (found) {
      impl_->busy_us += took;
      if (std::exchange(spinning, false)) spin.Found();
      continue;
    }
    const bool worth = spin_us > 0 && spin.worth() && impl_->WorthSpinning();
    if (worth && !spinning) spin_until = now + spin_us;
    if (worth && now < spin_until) {
      spinning = true;
      continue;
    }
    std::exchange(spinning, false) ? spin.Wasted() : spin.Slept();
    impl_->Sleep();
    before = impl_->clock.now_us();
  }
  // Tasks posted before Stop still run: their owners wait for them.
  impl_->RunTasks(static_cast<int>(kMailboxTasksMax));
}

uint64_t Loop::busy_us() const { return impl_->busy_us; }

void Loop::Stop() {
  // The flag is stored before Wake looks at `sleeping`; the loop announces sleep before it looks at
  // the flag. Same argument as in mailbox.cc: one of the two sees the other.
  impl_->stop.store(true, std::memory_order_seq_cst);
  impl_->mailbox.Wake();
}

}  // namespace crumb
