// The mailbox: a bounded ring, a flag that says "the consumer may sleep", and an eventfd.
//
// No lost wake-up. The consumer, before sleeping: (1) stores sleeping = true, (2) looks at the
// ring. A producer: (3) publishes into the ring, (4) looks at sleeping. All four are seq_cst, so
// they have one total order: if (2) did not see (3), then (3) is after (2), hence (4) is after (1)
// and sees the flag; the producer then writes the eventfd, which stays readable until FinishSleep.
// A late write (flag seen, then delayed) only wakes a later sleep once, for nothing.
// Cells that are claimed but not yet published look empty; their producer is still before (4).
#include "cachesvc/base/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include "cachesvc/base/check.h"
#include "cachesvc/base/mpmc_ring.h"

namespace crumb {

struct Mailbox::Impl {
  explicit Impl(size_t capacity) : ring(capacity), fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CRUMB_CHECK(fd >= 0);
  }
  ~Impl() { close(fd); }

  MpmcRing<Task> ring;
  alignas(64) std::atomic<bool> sleeping{false};
  const int fd;
};

Mailbox::Mailbox(size_t capacity) : impl_(std::make_unique<Impl>(capacity)) {}
Mailbox::~Mailbox() = default;

bool Mailbox::Push(Task task) {
  CRUMB_CHECK(task.run != nullptr);
  if (!impl_->ring.Push(task)) return false;
  if (impl_->sleeping.load(std::memory_order_seq_cst)) Wake();
  return true;
}

bool Mailbox::Pop(Task* task) { return impl_->ring.Pop(task); }

void Mailbox::Wake() {
  // Only the first of several producers pays for the system call. It can fail only when the
  // counter is at its maximum, and then the fd is readable already.
  if (impl_->sleeping.exchange(false, std::memory_order_seq_cst)) {
    (void)eventfd_write(impl_->fd, 1);
  }
}

int Mailbox::wake_fd() const { return impl_->fd; }

bool Mailbox::PrepareSleep() {
  impl_->sleeping.store(true, std::memory_order_seq_cst);
  if (!impl_->ring.MaybeReady()) return true;
  impl_->sleeping.store(false, std::memory_order_seq_cst);
  return false;
}

void Mailbox::FinishSleep() {
  impl_->sleeping.store(false, std::memory_order_seq_cst);
  eventfd_t ignored;
  (void)eventfd_read(impl_->fd, &ignored);  // EAGAIN when something else woke us
}

}  // namespace crumb
