// The demo's side of the conversation with crumbd: one client, one buffer lent as slots, whole
// chains of pages put, looked up and got, each step bounded in time. One thread.
#ifndef CRUMB_CLIENT_DEMO_EXCHANGE_H_
#define CRUMB_CLIENT_DEMO_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/clock.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "client/demo/sample.h"
#include "crumb/client.h"

namespace crumb::demo {

struct PutOutcome {
  uint64_t stored = 0;       // pages that the daemon took
  uint64_t not_durable = 0;  // of these: taken, but the durable write asked for did not happen
  double seconds = 0.0;
};

struct GetOutcome {
  uint32_t prefix = 0;                  // pages of the longest prefix, by lookup
  std::vector<client::Result> results;  // one per page of the prefix
  double seconds = 0.0;                 // of the get alone
};

class Exchange {
 public:
  static absl::StatusOr<std::unique_ptr<Exchange>> Connect(const client::Options& options,
                                                           const Sample& sample);

  // Registers the sample's layout under `name_space` with `codec`.
  absl::StatusOr<client::Layout> Register(const std::string& codec, const std::string& name_space);

  // Puts all pages of the sample, one request per page, each naming its parent and position.
  absl::StatusOr<PutOutcome> PutAll(const client::Layout& layout, bool durable);
  // Waits until the daemon has packed what lies behind the windows of that layout's chain: until no
  // more pages are raw than sink and recent windows hold. Bounded; what is not packed then is as
  // the daemon wants it.
  absl::Status AwaitPacked(const client::Layout& layout, uint32_t raw_pages_max);
  // Looks the longest prefix up (with one key too many, which must be where it ends), then gets it
  // into the slots. A page that lookup promised and get missed has its code in `results`.
  absl::StatusOr<GetOutcome> GetPrefix(const client::Layout& layout, client::Form form);

  // What lies in a slot after GetPrefix.
  Bytes slot(uint32_t page, size_t size) const;
  std::string data_plane() const { return client_->data_plane(); }

 private:
  class Loan;
  Exchange(const Sample& sample, std::unique_ptr<client::Client> client);
  client::Block BlockFor(uint32_t page) const;
  // Waits for these tickets; the completions in their order. Bounded by kAwaitSeconds.
  absl::StatusOr<std::vector<client::Completion>> Await(const std::vector<client::Ticket>& tickets);
  absl::StatusOr<client::Completion> Await(client::Ticket ticket);
  absl::StatusOr<client::Ticket> SubmitPut(const client::Layout& layout, uint32_t region_set,
                                           uint32_t page, const client::RequestOptions& options);
  absl::Status CountPut(const client::Completion& completion, PutOutcome& outcome,
                        bool* again) const;

  const Sample& sample_;
  std::vector<std::string> keys_;  // one per page, and one that is never put
  uint64_t slot_bytes_ = 0;
  std::vector<uint8_t> memory_;
  SteadyClock clock_;
  std::unique_ptr<client::Client> client_;  // last: lent memory outlives it
};

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_EXCHANGE_H_
