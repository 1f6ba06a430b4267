// The pool: two bounded rings and two eventfds, written only for somebody who sleeps.
//
// No job is forgotten. A worker, before sleeping: (1) counts itself in `sleepers`, (2) looks at the
// ring. The owner: (3) publishes a job, (4) looks at `sleepers`. All seq_cst, so if (2) did not see
// (3), then (4) sees (1) and writes one count of the semaphore. A count that nobody needed wakes a
// worker once, for nothing. A worker that finds a cell claimed by another leaves it to that one,
// who looks again after its job.
//
// No result is forgotten. An owner that never armed gets one write per token and keeps track of how
// many it has not read yet, so that the fd is readable exactly when Poll has work left. One that
// arms: stores kSleeping, then looks at the ring; a worker publishes, then looks at the state. Same
// argument; a late write wakes a later sleep once, for nothing.
#include "cachesvc/base/worker_pool.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/mpmc_ring.h"

namespace crumb {
namespace {

constexpr int kSpins = 2000;  // looks at an empty ring before a worker sleeps: some 5 us

enum class Owner : uint8_t { kAwake, kSleeping, kNeverArmed };

// Threads of ours leave signals to main.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    CRUMB_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before_) == 0);
  }
  ~BlockSignals() { CRUMB_CHECK(pthread_sigmask(SIG_SETMASK, &before_, nullptr) == 0); }

 private:
  sigset_t before_;
};

}  // namespace

struct WorkerPool::Impl {
  Impl(size_t threads_wanted, size_t jobs)
      : jobs_max(jobs),
        jobs_ring(jobs),
        done_ring(jobs),
        job_fd(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)),
        done_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CRUMB_CHECK(threads_wanted >= 1 && job_fd >= 0 && done_fd >= 0);
    const BlockSignals block;
    for (size_t i = 0; i < threads_wanted; ++i) {
      workers.emplace_back([this, i] { Work(static_cast<uint32_t>(i)); });
      (void)pthread_setname_np(workers.back().native_handle(), "crumb-pool");
    }
  }

  ~Impl() {
    stop.store(true, std::memory_order_release);
    CRUMB_CHECK(eventfd_write(job_fd, workers.size()) == 0);
    for (std::thread& worker : workers) worker.join();
    close(job_fd);
    close(done_fd);
  }

  void Work(uint32_t worker) {
    Job job;
    while (Take(&job)) {
      job.run(job.arg, worker);
      CRUMB_CHECK(done_ring.Push(job.token));  // never full: at most jobs_max are out
      WakeOwner();
    }
  }

  // False: the pool ends.
  bool Take(Job* job) {
    for (;;) {
      for (int i = 0; i < kSpins && !stop.load(std::memory_order_relaxed); ++i) {
        if (jobs_ring.Pop(job)) return true;
      }
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      const bool found = !stop.load(std::memory_order_seq_cst) && jobs_ring.Pop(job);
      eventfd_t one;
      while (!found && eventfd_read(job_fd, &one) != 0) CRUMB_CHECK(errno == EINTR);
      sleepers.fetch_sub(1, std::memory_order_seq_cst);
      if (found) return true;
      if (stop.load(std::memory_order_acquire)) return false;
    }
  }

  void WakeOwner() {
    const Owner seen = owner.load(std::memory_order_seq_cst);
    if (seen == Owner::kAwake) return;
    if (seen == Owner::kSleeping &&
        owner.exchange(Owner::kAwake, std::memory_order_seq_cst) != Owner::kSleeping) {
      return;  // another worker wakes it
    }
    CRUMB_CHECK(eventfd_write(done_fd, 1) == 0);
  }

  const size_t jobs_max;
  MpmcRing<Job> jobs_ring;
  MpmcRing<uint64_t> done_ring;
  const int job_fd;
  const int done_fd;
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<uint32_t> sleepers{0};
  alignas(64) std::atomic<Owner> owner{Owner::kNeverArmed};
  // Owner thread only.
  size_t in_flight = 0;
  uint64_t writes_owed = 0;  // never armed: tokens popped whose eventfd write was not read yet
  bool armed = false;        // since the last Poll
  std::vector<std::thread> workers;
};

WorkerPool::WorkerPool(size_t threads, size_t jobs_max)
    : impl_(std::make_unique<Impl>(threads, jobs_max)) {}
WorkerPool::~WorkerPool() = default;

bool WorkerPool::Submit(const Job& job) {
  CRUMB_CHECK(job.run != nullptr);
  if (impl_->in_flight >= impl_->jobs_max) return false;
  // A worker preempted in the middle of taking a job can hold its cell a whole lap: rare, and then
  // the honest answer is busy.
  if (!impl_->jobs_ring.Push(job)) return false;
  ++impl_->in_flight;
  if (impl_->sleepers.load(std::memory_order_seq_cst) > 0) {
    CRUMB_CHECK(eventfd_write(impl_->job_fd, 1) == 0);
  }
  return true;
}

bool WorkerPool::Arm() {
  impl_->writes_owed = 0;
  impl_->armed = true;
  impl_->owner.store(Owner::kSleeping, std::memory_order_seq_cst);
  return !impl_->done_ring.MaybeReady();
}

size_t WorkerPool::Poll(absl::Span<uint64_t> tokens) {
  const bool arms = impl_->owner.load(std::memory_order_relaxed) != Owner::kNeverArmed;
  if (std::exchange(impl_->armed, false)) {
    impl_->owner.store(Owner::kAwake, std::memory_order_seq_cst);
    eventfd_t ignored = 0;
    (void)eventfd_read(impl_->done_fd, &ignored);
  }
  if (impl_->in_flight == 0 && impl_->writes_owed == 0) return 0;
  size_t count = 0;
  while (count < tokens.size() && impl_->done_ring.Pop(&tokens[count])) ++count;
  CRUMB_CHECK(count <= impl_->in_flight);
  impl_->in_flight -= count;
  if (arms) return count;
  impl_->writes_owed += count;
  if (impl_->writes_owed == 0) return count;
  eventfd_t written = 0;
  if (eventfd_read(impl_->done_fd, &written) != 0) return count;
  if (written > impl_->writes_owed) {
    // Writes of tokens that are still in the ring: give them back, so that the fd stays readable.
    CRUMB_CHECK(eventfd_write(impl_->done_fd, written - impl_->writes_owed) == 0);
    written = impl_->writes_owed;
  }
  impl_->writes_owed -= written;
  return count;
}

size_t WorkerPool::in_flight() const { return impl_->in_flight; }
size_t WorkerPool::threads() const { return impl_->workers.size(); }
int WorkerPool::wake_fd() const { return impl_->done_fd; }

}  // namespace crumb
