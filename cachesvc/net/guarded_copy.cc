// The guard: a signal handler that leaves a copy in progress by siglongjmp. Between sigsetjmp and
// the jump there is one memcpy, so no destructor is skipped. Process-wide is only what the kernel
// makes so: the handler, and what it replaced.
#include "cachesvc/net/guarded_copy.h"

#include <pthread.h>

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace crumb {
namespace {

struct Guard {
  sigjmp_buf place;
  uintptr_t to = 0, from = 0, bytes = 0;
  volatile sig_atomic_t active = 0;
  bool unblocked = false;
};

thread_local Guard guard;
struct sigaction previous;  // written once, before the handler can run

bool Covers(uintptr_t start, uintptr_t address) {
  return address >= start && address - start < guard.bytes;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (guard.active != 0 && info->si_code > 0 &&
      (Covers(guard.to, address) || Covers(guard.from, address))) {
    guard.active = 0;
    siglongjmp(guard.place, 1);
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    return previous.sa_handler(signal);
  }
  // Without us the process would have ended here: the access is repeated without a handler, and a
  // signal that was sent is sent again.
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &plain, nullptr);
  if (info->si_code <= 0) raise(SIGBUS);
}

// Pool threads block all signals; a blocked SIGBUS of one's own ends the process.
void UnblockOnce() {
  if (guard.unblocked) return;
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  guard.unblocked = pthread_sigmask(SIG_UNBLOCK, &bus, nullptr) == 0;
}

}  // namespace

bool InstallCopyGuard() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = OnBusError;
    // NODEFER: the jump leaves the handler without its return, which would unblock the signal.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, nullptr, &previous) == 0 && sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  return installed;
}

bool GuardedCopy(void* to, const void* from, size_t bytes) noexcept {
  UnblockOnce();
  guard.to = reinterpret_cast<uintptr_t>(to);
  guard.from = reinterpret_cast<uintptr_t>(from);
  guard.bytes = bytes;
  if (sigsetjmp(guard.place, 0) != 0) {
    // Whoever wraps signal handlers may block more than we asked for, and the jump skipped his
    // undoing.
    guard.unblocked = false;
    UnblockOnce();
    return false;
  }
  guard.active = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guard.active = 0;
  return true;
}

}  // namespace crumb
