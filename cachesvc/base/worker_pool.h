// Threads for work that may block or burn a core (CPU codec, checksums, big copies). A job works
// on memory pinned by its shard; results come back through a bounded ring polled by the shard.
#ifndef CRUMB_CACHESVC_BASE_WORKER_POOL_H_
#define CRUMB_CACHESVC_BASE_WORKER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

namespace crumb {

struct Job {
  // On a pool thread; `worker` < threads() names it, e.g. to pick its scratch memory.
  void (*run)(void* arg, uint32_t worker) noexcept = nullptr;
  void* arg = nullptr;
  uint64_t token = 0;  // comes back from Poll
};

class WorkerPool {
 public:
  // `threads` >= 1; at most `jobs_max` submitted and not yet polled.
  WorkerPool(size_t threads, size_t jobs_max);
  ~WorkerPool();  // finishes running jobs, drops queued ones

  // Owner thread. False when jobs_max are in flight (or, rarely, when a worker was preempted in the
  // middle of taking a job and all cells behind it are used).
  bool Submit(const Job& job);
  // Owner thread: tokens of finished jobs, in order of completion.
  size_t Poll(absl::Span<uint64_t> tokens);
  size_t in_flight() const;
  size_t threads() const;
  // Readable when Poll may yield something. Owners that call Arm before they sleep, and sleep only
  // if it says true, spare the workers most of their wake-ups: then it is readable only after Arm.
  int wake_fd() const;
  bool Arm();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_WORKER_POOL_H_
