// A handler that writes to an eventfd, which Wait polls: the signal may hit any thread of the
// process, gRPC's too, so that a call which the signal interrupts is not enough. The handler may
// touch nothing but lock-free atomics and write(2).
#include "client/cli/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "cachesvc/base/clock.h"

namespace crumb::cli {
namespace {

std::atomic<int> wake_fd{-1};
std::atomic<int> came{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void NoteStop(int number) {
  const int saved = errno;
  came.store(number);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const uint64_t one = 1;
  // WHY ignored: an eventfd refuses this only where it is readable already, which is as good.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd.load(), &one, sizeof(one));
  errno = saved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StopSignals>> StopSignals::Take() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "eventfd: raise the limit of open files");
  return std::unique_ptr<StopSignals>(new StopSignals(fd));
}

StopSignals::StopSignals(int fd) : fd_(fd) {
  wake_fd.store(fd);
  came.store(0);
  interrupt_ = std::signal(SIGINT, NoteStop);
  terminate_ = std::signal(SIGTERM, NoteStop);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
  wake_fd.store(-1);
  ::close(fd_);
}

int StopSignals::Wait(uint32_t timeout_ms) const {
  const SteadyClock clock;
  const uint64_t until_us = clock.now_us() + uint64_t{timeout_ms} * 1000;
  for (;;) {
    const uint64_t now_us = clock.now_us();
    if (came.load() != 0 || now_us >= until_us) return came.load();
    const uint64_t left_ms = (until_us - now_us + 999) / 1000;
    pollfd wake{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&wake, 1, static_cast<int>(std::min<uint64_t>(left_ms, 1000)));
  }
}

}  // namespace crumb::cli
