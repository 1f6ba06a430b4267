// ClientCore: what a Client does, with its clock and its way to the daemon behind seams.
// Submissions into the table and the plane, progress in Drain, loss and return. Must never wait
// but in Drain, Reconnect and the control verbs. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_CLIENT_CORE_H_
#define CRUMB_CLIENT_SRC_CLIENT_CORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/src/breaker.h"
#include "client/src/request_table.h"
#include "client/src/session.h"
#include "client/src/waker.h"
#include "crumb/client.h"

namespace crumb::client {

// INVALID_ARGUMENT names the option that is out of range.
absl::Status CheckClientOptions(const Options& options);

class ClientCore {
 public:
  struct Seams {
    const Clock* clock = nullptr;  // outlives the core
    LinkOpener opener;
    GpuSide* gpu = nullptr;  // outlives the core; null: nobody lends GPU memory
    uint64_t seed = 0;
  };
  ClientCore(const Options& options, std::string server, Seams seams);
  // Says goodbye, and hears the answers of what it ends.
  ~ClientCore();

  // Before everything else.
  absl::Status OpenWaker() { return waker_.Open(); }
  // Opens a session now, if there is none.
  Status Open();

  struct Asked {
    WireType type = WireType::kGet;
    uint32_t layout = 0;
    uint32_t region_set = 0;
    const std::vector<Block>* blocks = nullptr;
    RequestOptions options;
  };
  Status Submit(const Asked& asked, Ticket* ticket);
  Status Cancel(Ticket ticket);
  size_t Drain(uint32_t timeout_ms, std::vector<Completion>* out);
  void Recycle(std::vector<Completion>* completions) { table_.Recycle(completions); }
  Status Unlend(uint32_t region_set);
  absl::StatusOr<uint32_t> LendGpu(uint32_t layout, const LentMemory& places,
                                   CodecPlace place = CodecPlace::kAuto);

  Session& session() { return session_; }
  const Session& session() const { return session_; }
  const RequestTable& table() const { return table_; }
  int event_fd() const { return waker_.fd(); }
  size_t in_flight() const { return table_.in_flight() + ready_.size(); }
  ClientStats stats() const;

 private:
  Status Refuse(Code code, std::string message);
  absl::Status Build(const Asked& asked, PlaneRequest* out);
  Status Send(std::shared_ptr<PlaneRequest> request, void* stream, Ticket* ticket);
  void Progress();
  void TakeReply(const PlaneReply& reply);
  void TakeUnheard(Completion* done);
  void ExpireRequests(uint64_t now_us);
  void WatchLife(uint64_t now_us);
  void Lose();
  void Revive();
  void OnOpened();
  void Spin(uint64_t until_us);
  void PrepareSleep();
  uint64_t NextWakeUs(uint64_t now_us) const;

  const Options options_;
  const Clock& clock_;
  Rng rng_;
  Breaker breaker_;
  Waker waker_;
  Session session_;
  RequestTable table_;
  ClientStats counts_;  // gauges are filled in by stats()
  std::vector<Completion> ready_;
  ReplyList replies_;              // reused
  std::vector<uint64_t> expired_;  // reused
  uint64_t next_id_ = 1;
  uint64_t probe_id_ = 0;  // the last request that went as the circuit's probe
  uint64_t next_ask_us_ = 0;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_CLIENT_CORE_H_
