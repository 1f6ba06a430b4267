// epoll over an eventfd, a timerfd and the plane's fd.
#include "client/src/waker.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb::client {
namespace {

void Add(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CRUMB_CHECK(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

}  // namespace

Waker::~Waker() {
  for (int fd : {epoll_, event_, timer_}) {
    if (fd >= 0) ::close(fd);
  }
}

absl::Status Waker::Open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  event_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (epoll_ < 0 || event_ < 0 || timer_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no file descriptors for a client: ", std::strerror(errno),
                     "; raise the limit of open files (ulimit -n)"));
  }
  Add(epoll_, event_);
  Add(epoll_, timer_);
  return absl::OkStatus();
}

void Waker::Watch(int fd) {
  // An fd that its owner closed already left the set by itself: that error is the expected one.
  if (watched_ >= 0) static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_DEL, watched_, nullptr));
  watched_ = fd;
  if (fd >= 0) Add(epoll_, fd);
}

void Waker::Raise() {
  if (raised_) return;
  raised_ = true;
  const uint64_t one = 1;
  CRUMB_CHECK(::write(event_, &one, sizeof(one)) == sizeof(one));
}

void Waker::Lower() {
  if (!raised_) return;
  raised_ = false;
  uint64_t count = 0;
  CRUMB_CHECK(::read(event_, &count, sizeof(count)) == sizeof(count));
}

void Waker::SetTimer(uint64_t at_us) {
  if (at_us == timer_at_us_) return;
  timer_at_us_ = at_us;
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(at_us / 1'000'000);
  spec.it_value.tv_nsec = static_cast<long>(at_us % 1'000'000) * 1000;
  CRUMB_CHECK(::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr) == 0);
}

void Waker::SetTimerBy(uint64_t at_us) {
  if (at_us != 0 && (timer_at_us_ == 0 || at_us < timer_at_us_)) SetTimer(at_us);
}

void Waker::Wait(uint64_t timeout_us) const {
  pollfd poll{.fd = epoll_, .events = POLLIN, .revents = 0};
  const timespec timeout{.tv_sec = static_cast<time_t>(timeout_us / 1'000'000),
                         .tv_nsec = static_cast<long>(timeout_us % 1'000'000) * 1000};
  // EINTR counts as a wake-up: the caller looks and waits again.
  static_cast<void>(::ppoll(&poll, 1, &timeout, nullptr));
}

}  // namespace crumb::client
