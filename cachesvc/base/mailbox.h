// Tasks from other threads into a loop: a bounded multi-producer single-consumer ring with an
// eventfd. The only lock-free code besides mpmc_ring.h; its memory orders are argued in the .cc.
#ifndef CRUMB_CACHESVC_BASE_MAILBOX_H_
#define CRUMB_CACHESVC_BASE_MAILBOX_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace crumb {

// What travels: a function and its argument. No allocation here; the argument's owner frees it.
struct Task {
  void (*run)(void* arg) = nullptr;
  void* arg = nullptr;
};

class Mailbox {
 public:
  // `capacity` is rounded up to a power of two.
  explicit Mailbox(size_t capacity);
  ~Mailbox();

  // Any thread. False when full. Wakes the consumer if it may sleep.
  bool Push(Task task);
  // Consumer only. False when empty.
  bool Pop(Task* task);
  // Any thread: ends a sleep that PrepareSleep announced; nothing to do otherwise.
  void Wake();

  int wake_fd() const;
  // Consumer only: announces sleep; false if there is something to pop (do not sleep).
  bool PrepareSleep();
  // Consumer only: after waking up.
  void FinishSleep();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_BASE_MAILBOX_H_
