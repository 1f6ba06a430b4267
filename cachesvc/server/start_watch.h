// How far a start has come, and whether it should end: the start says what it does, HTTP shows it,
// a signal cancels it. Any thread.
#ifndef CRUMB_CACHESVC_SERVER_START_WATCH_H_
#define CRUMB_CACHESVC_SERVER_START_WATCH_H_

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "cachesvc/base/status.h"

namespace crumb {

class StartWatch {
 public:
  void Say(std::string what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    what_ = std::move(what);
  }
  std::string what() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return what_;
  }
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // CANCELLED once Cancel was called: to be asked between steps, none of which takes long.
  absl::Status Check() const {
    if (!cancelled_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return absl::CancelledError("asked to stop during the start");
  }
  const std::atomic<bool>* flag() const { return &cancelled_; }

 private:
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  std::string what_ = "reading data_dir";
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_START_WATCH_H_
