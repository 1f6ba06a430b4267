// The one thread for work that blocks and is not data: catalog writes, building codecs, closing
// idle sessions. Jobs run in order; their number is bounded.
#ifndef CRUMB_CACHESVC_SERVER_CONTROL_THREAD_H_
#define CRUMB_CACHESVC_SERVER_CONTROL_THREAD_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace crumb {

class ControlThread {
 public:
  // `tick` runs about once a second, between jobs.
  ControlThread(size_t jobs_max, std::function<void()> tick);
  ~ControlThread();  // Stop

  // Any thread. False when jobs_max wait, or after Stop: answer busy. A job that was taken runs.
  bool Post(std::function<void()> job);
  // Finishes the jobs that wait, then ends the thread. Not from a job.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CONTROL_THREAD_H_
