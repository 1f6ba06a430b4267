// Hub: one crumb::client::Client for many threads. Whoever waits drains, one thread at a time, and
// hands the others what is theirs. Knows nothing of Python; must never be entered with the
// interpreter's lock held, as it waits. Any thread.
#ifndef CRUMB_CLIENT_PYTHON_SRC_HUB_H_
#define CRUMB_CLIENT_PYTHON_SRC_HUB_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "crumb/client.h"

namespace crumb::python {

enum class Verb : uint8_t { kPut, kGet, kLookup, kPrefetch, kDelete };

struct Asked {
  Verb verb = Verb::kLookup;
  const client::Layout* layout = nullptr;
  uint32_t region_set = 0;
  const std::vector<client::Block>* blocks = nullptr;
  client::RequestOptions options;
};

class Hub {
 public:
  // False: the caller was interrupted and gives up. Called often, without the lock.
  using KeepGoing = std::function<bool()>;

  static client::Status Open(const client::Options& options, std::unique_ptr<Hub>* out);
  // REQUIRES: no call is under way (Close sees to that).
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Ends waiting calls (kCancelled, "closed"), then the Client. Idempotent.
  void Close();

  // One use of the Client that is not a request, alone. False: the hub is closed.
  bool With(const std::function<void(client::Client*)>& use);

  client::Status Submit(const Asked& asked, client::Ticket* ticket);
  // Submits and waits for the answer. A full client (kBusy) is waited for as long as the request's
  // deadline, and refuses then. kCancelled: interrupted, or the hub was closed.
  client::Status Ask(const Asked& asked, const KeepGoing& keep_going, client::Completion* out);
  // Appends what was submitted and is answered. Waits up to timeout_ms for the first one. False:
  // interrupted or closed.
  bool Drain(uint32_t timeout_ms, const KeepGoing& keep_going,
             std::vector<client::Completion>* out);
  void Recycle(std::vector<client::Completion>* completions);
  // Readable when Drain may have something.
  int fd() const { return epoll_; }

 private:
  struct Waiting {  // on the stack of Ask
    bool done = false;
    client::Completion* out = nullptr;
  };
  using Lock = std::unique_lock<std::mutex>;
  class Guest;

  Hub(const client::Options& options, std::unique_ptr<client::Client> client);
  client::Status OpenDescriptors();
  client::Status SubmitLocked(const Asked& asked, client::Ticket* ticket);
  // Until done() or until_us; false: interrupted or closed.
  bool WaitUntil(Lock* lock, const std::function<bool()>& done, uint64_t until_us,
                 const KeepGoing& keep_going);
  bool DrainTurn(Lock* lock, const std::function<bool()>& done, uint64_t until_us);
  void HandOut();
  void Raise(bool raised);

  const uint32_t deadline_ms_;
  const bool spins_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<client::Client> client_;
  std::unordered_map<client::Ticket, Waiting*> awaited_;
  std::unordered_set<client::Ticket> dropped_;  // of calls that were interrupted
  std::vector<client::Completion> fresh_, ready_, spent_;
  uint32_t guests_ = 0;
  bool draining_ = false;
  bool closing_ = false;
  bool raised_ = false;
  int epoll_ = -1;  // over the Client's fd and event_
  int event_ = -1;  // readable: ready_ has something, or the hub closes
};

}  // namespace crumb::python

#endif  // CRUMB_CLIENT_PYTHON_SRC_HUB_H_
