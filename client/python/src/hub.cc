// Leader and followers: the thread that finds nobody draining drains until its own answer is there.
#include "client/python/src/hub.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace crumb::python {
namespace {

using client::Code;
using client::Completion;
using client::Status;
using client::Ticket;

// A signal's handler runs in the caller at the latest after so long.
constexpr uint64_t kTurnUs = 100'000;

uint64_t NowUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

Status Closed() { return {Code::kCancelled, "the client was closed"}; }

}  // namespace

// A call that is inside; Close waits for them.
class Hub::Guest {
 public:
  explicit Guest(Hub* hub) : hub_(*hub) { ++hub_.guests_; }
  ~Guest() {
    --hub_.guests_;
    if (hub_.closing_) hub_.changed_.notify_all();
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

 private:
  Hub& hub_;
};

Hub::Hub(const client::Options& options, std::unique_ptr<client::Client> client)
    : deadline_ms_(options.deadline_ms), spins_(options.spin_us != 0), client_(std::move(client)) {}

Status Hub::Open(const client::Options& options, std::unique_ptr<Hub>* out) {
  std::unique_ptr<client::Client> client;
  Status status = client::Client::Connect(options, &client);
  if (!status.ok()) return status;
  std::unique_ptr<Hub> hub(new Hub(options, std::move(client)));
  status = hub->OpenDescriptors();
  if (status.ok()) *out = std::move(hub);
  return status;
}

Status Hub::OpenDescriptors() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  event_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  const bool good = epoll_ >= 0 && event_ >= 0 &&
                    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &event) == 0 &&
                    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, client_->event_fd(), &event) == 0;
  if (good) return {};
  return {Code::kBusy, "no file descriptors for a client: raise the limit (ulimit -n)"};
}

Hub::~Hub() {
  client_.reset();
  for (const int fd : {epoll_, event_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Hub::Close() {
  std::unique_ptr<client::Client> gone;
  {
    Lock lock(mutex_);
    closing_ = true;
    Raise(true);
    changed_.notify_all();
    changed_.wait(lock, [this] { return guests_ == 0; });
    gone = std::move(client_);
  }
}

bool Hub::With(const std::function<void(client::Client*)>& use) {
  const Lock lock(mutex_);
  if (client_ == nullptr || closing_) return false;
  use(client_.get());
  return true;
}

void Hub::Raise(bool raised) {
  if (raised == raised_) return;
  raised_ = raised;
  uint64_t count = 1;
  // Neither can fail: the counter is 0 or 1, as raised_ says.
  const ssize_t moved =
      raised ? ::write(event_, &count, sizeof(count)) : ::read(event_, &count, sizeof(count));
  static_cast<void>(moved);
}

Status Hub::SubmitLocked(const Asked& asked, Ticket* ticket) {
  const client::Layout& layout = *asked.layout;
  switch (asked.verb) {
    case Verb::kPut:
      return client_->SubmitPut(layout, asked.region_set, *asked.blocks, asked.options, ticket);
    case Verb::kGet:
      return client_->SubmitGet(layout, asked.region_set, *asked.blocks, asked.options, ticket);
    case Verb::kLookup:
      return client_->SubmitLookup(layout, *asked.blocks, asked.options, ticket);
    case Verb::kPrefetch:
      return client_->SubmitPrefetch(layout, *asked.blocks, asked.options, ticket);
    case Verb::kDelete:
      return client_->SubmitDelete(layout, *asked.blocks, ticket);
  }
  return {Code::kInvalid, "no such verb"};
}

Status Hub::Submit(const Asked& asked, Ticket* ticket) {
  const Lock lock(mutex_);
  if (client_ == nullptr || closing_) return Closed();
  return SubmitLocked(asked, ticket);
}

Status Hub::Ask(const Asked& asked, const KeepGoing& keep_going, Completion* out) {
  Lock lock(mutex_);
  if (client_ == nullptr || closing_) return Closed();
  const Guest guest(this);
  const uint32_t deadline_ms =
      asked.options.deadline_ms != 0 ? asked.options.deadline_ms : deadline_ms_;
  const uint64_t until_us = NowUs() + uint64_t{deadline_ms} * 1000;
  Ticket ticket = 0;
  for (;;) {
    const Status status = SubmitLocked(asked, &ticket);
    if (status.ok()) break;
    // Full: what is in flight makes room. With nothing in flight nobody ever would.
    const uint64_t finished = client_->stats().completions;
    const bool may_help = status.code == Code::kBusy && client_->in_flight() > 0;
    if (!may_help || NowUs() >= until_us) return status;
    const auto moved = [this, finished] { return client_->stats().completions != finished; };
    if (!WaitUntil(&lock, moved, until_us, keep_going)) return Closed();
  }
  Waiting waiting{.done = false, .out = out};
  awaited_.emplace(ticket, &waiting);
  const auto done = [&waiting] { return waiting.done; };
  // The Client answers every request: by its deadline and grace at the latest.
  if (WaitUntil(&lock, done, UINT64_MAX, keep_going)) return {};
  awaited_.erase(ticket);
  if (!waiting.done) {
    dropped_.insert(ticket);
    static_cast<void>(client_->Cancel(ticket));
  }
  return Closed();
}

bool Hub::Drain(uint32_t timeout_ms, const KeepGoing& keep_going, std::vector<Completion>* out) {
  Lock lock(mutex_);
  if (client_ == nullptr || closing_) return false;
  const Guest guest(this);
  if (!draining_) {
    client_->Drain(0, &fresh_);
    HandOut();
  }
  const uint64_t until_us = NowUs() + uint64_t{timeout_ms} * 1000;
  const auto some = [this] { return !ready_.empty(); };
  const bool good = some() || timeout_ms == 0 || WaitUntil(&lock, some, until_us, keep_going);
  for (Completion& one : ready_) out->push_back(std::move(one));
  ready_.clear();
  if (!closing_) Raise(false);
  return good;
}

void Hub::Recycle(std::vector<Completion>* completions) {
  const Lock lock(mutex_);
  if (client_ != nullptr) client_->Recycle(completions);
}

bool Hub::WaitUntil(Lock* lock, const std::function<bool()>& done, uint64_t until_us,
                    const KeepGoing& keep_going) {
  while (!done()) {
    if (closing_) return false;
    const uint64_t now_us = NowUs();
    if (now_us >= until_us) return true;
    bool quiet = false;
    if (draining_) {
      const auto wait = std::chrono::microseconds(std::min(kTurnUs, until_us - now_us));
      quiet = changed_.wait_for(*lock, wait) == std::cv_status::timeout;
    } else {
      quiet = DrainTurn(lock, done, until_us);
    }
    // WHY only then: asking takes the interpreter's lock, which other threads may keep for long.
    if (!quiet || done()) continue;
    lock->unlock();
    const bool go_on = keep_going();
    lock->lock();
    if (!go_on) return false;
  }
  return true;
}

// REQUIRES: nobody drains. Drains once and, if that did not help, sleeps until there may be more.
// True: nothing came for a turn, or a signal did.
bool Hub::DrainTurn(Lock* lock, const std::function<bool()>& done, uint64_t until_us) {
  draining_ = true;
  client_->Drain(spins_ ? 1 : 0, &fresh_);
  HandOut();
  bool quiet = false;
  if (!done()) {
    pollfd wait[2] = {{.fd = client_->event_fd(), .events = POLLIN, .revents = 0},
                      {.fd = event_, .events = POLLIN, .revents = 0}};
    const uint64_t now_us = NowUs();
    const uint64_t wait_us = until_us <= now_us ? 0 : std::min(kTurnUs, until_us - now_us);
    const timespec timeout{.tv_sec = static_cast<time_t>(wait_us / 1'000'000),
                           .tv_nsec = static_cast<long>(wait_us % 1'000'000) * 1000};
    // event_ matters to the caller only if it closes: what is ready may be for somebody else.
    const nfds_t watched = raised_ && !closing_ ? 1 : 2;
    lock->unlock();
    quiet = ::ppoll(wait, watched, &timeout, nullptr) <= 0;
    lock->lock();
  }
  draining_ = false;
  changed_.notify_all();
  return quiet;
}

void Hub::HandOut() {
  for (Completion& one : fresh_) {
    if (dropped_.erase(one.ticket) != 0) {
      spent_.push_back(std::move(one));
      continue;
    }
    const auto found = awaited_.find(one.ticket);
    if (found == awaited_.end()) {
      ready_.push_back(std::move(one));
      continue;
    }
    *found->second->out = std::move(one);
    found->second->done = true;
    awaited_.erase(found);
  }
  fresh_.clear();
  client_->Recycle(&spent_);
  if (!ready_.empty()) Raise(true);
}

}  // namespace crumb::python
