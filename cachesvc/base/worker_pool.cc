// The pool: two bounded rings and two eventfds. Jobs go through `jobs` and a semaphore eventfd (one
// count per job, so a worker that got a count finds a job); tokens come back through `done` and a
// counting eventfd. Workers write exactly once per token after publishing it; the owner keeps track
// of how many writes it has not read yet, so the fd is readable exactly when Poll has work left.
#include "cachesvc/base/worker_pool.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/mpmc_ring.h"

namespace crumb {
namespace {

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
    for (;;) {
      eventfd_t one;
      while (eventfd_read(job_fd, &one) != 0) CRUMB_CHECK(errno == EINTR);
      if (stop.load(std::memory_order_acquire)) return;
      Job job;
      CRUMB_CHECK(jobs_ring.Pop(&job));  // INVARIANT: one count per published job
      job.run(job.arg, worker);
      CRUMB_CHECK(done_ring.Push(job.token));  // never full: at most jobs_max are out
      CRUMB_CHECK(eventfd_write(done_fd, 1) == 0);
    }
  }

  const size_t jobs_max;
  MpmcRing<Job> jobs_ring;
  MpmcRing<uint64_t> done_ring;
  const int job_fd;
  const int done_fd;
  std::atomic<bool> stop{false};
  // Owner thread only.
  size_t in_flight = 0;
  uint64_t writes_owed = 0;  // tokens popped whose eventfd write was not read yet
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
  CRUMB_CHECK(eventfd_write(impl_->job_fd, 1) == 0);
  return true;
}

size_t WorkerPool::Poll(absl::Span<uint64_t> tokens) {
  if (impl_->in_flight == 0 && impl_->writes_owed == 0) return 0;
  size_t count = 0;
  while (count < tokens.size() && impl_->done_ring.Pop(&tokens[count])) ++count;
  CRUMB_CHECK(count <= impl_->in_flight);
  impl_->in_flight -= count;
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
