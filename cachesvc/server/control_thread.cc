// A queue and a thread.
#include "cachesvc/server/control_thread.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace crumb {

struct ControlThread::Impl {
  const size_t jobs_max;
  const std::function<void()> tick;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  bool stopping = false;
  std::thread thread;

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    auto next_tick = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (;;) {
      wake.wait_until(lock, next_tick, [&] { return stopping || !jobs.empty(); });
      if (!jobs.empty()) {
        std::function<void()> job = std::move(jobs.front());
        jobs.pop_front();
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
      } else if (stopping) {
        return;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now < next_tick || stopping) continue;
      next_tick = now + std::chrono::seconds(1);
      lock.unlock();
      tick();
      lock.lock();
    }
  }
};

ControlThread::ControlThread(size_t jobs_max, std::function<void()> tick)
    : impl_(new Impl{.jobs_max = jobs_max,
                     .tick = std::move(tick),
                     .mutex = {},
                     .wake = {},
                     .jobs = {},
                     .stopping = false,
                     .thread = {}}) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

ControlThread::~ControlThread() { Stop(); }

bool ControlThread::Post(std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->stopping || impl_->jobs.size() >= impl_->jobs_max) return false;
    impl_->jobs.push_back(std::move(job));
  }
  impl_->wake.notify_one();
  return true;
}

void ControlThread::Stop() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace crumb
