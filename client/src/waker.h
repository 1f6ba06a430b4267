// Waker: the one fd that a Client shows to its worker's event loop, for the Client's whole life. It
// is readable when something is raised, when the watched fd (of the present data plane) is, or when
// the timer ran out. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_WAKER_H_
#define CRUMB_CLIENT_SRC_WAKER_H_

#include <cstdint>

#include "cachesvc/base/status.h"

namespace crumb::client {

class Waker {
 public:
  Waker() = default;
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  absl::Status Open();
  int fd() const { return epoll_; }

  // Watches `fd` in place of the one before; -1: none.
  void Watch(int fd);
  // Makes fd() readable until Lower.
  void Raise();
  void Lower();
  bool raised() const { return raised_; }
  // Readable once at this time of SteadyClock; 0 = never.
  void SetTimer(uint64_t at_us);
  // Readable at this time or sooner: an earlier timer stays.
  void SetTimerBy(uint64_t at_us);
  // Until readable or timeout_us passed.
  void Wait(uint64_t timeout_us) const;

 private:
  int epoll_ = -1;
  int event_ = -1;
  int timer_ = -1;
  int watched_ = -1;
  uint64_t timer_at_us_ = 0;
  bool raised_ = false;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_WAKER_H_
