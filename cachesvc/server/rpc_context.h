// What every RPC needs, in one place, and the life of a call that other threads finish. Borrowed by
// the services; the daemon owns all of it and outlives them.
#ifndef CRUMB_CACHESVC_SERVER_RPC_CONTEXT_H_
#define CRUMB_CACHESVC_SERVER_RPC_CONTEXT_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cachesvc/server/catalog.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/control_thread.h"
#include "cachesvc/server/layouts.h"
#include "cachesvc/server/log.h"
#include "cachesvc/server/sessions.h"
#include "cachesvc/server/shard.h"
#include "cachesvc/server/snapshot.h"
#include "cachesvc/server/staging_pool.h"

namespace crumb {

struct RpcContext {
  const Config& config;
  Log& log;
  Shard& shard;
  StagingPool& staging;
  SessionTable& sessions;
  LayoutTable& layouts;
  ControlThread& control;
  Registrar& registrar;  // on the control thread only
  Catalog& catalog;      // on the control thread only
  std::function<Snapshot()> snapshot;
  std::string version;
  bool ucx = false;
  std::string ucx_transports;
  std::string data_socket;  // empty: none
  std::string codec_place;  // of GPUs
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> next_request{1};
  std::atomic<uint64_t> in_flight{0};
  std::atomic<uint64_t> refused{0};
};

inline constexpr char kBusyMessage[] = "the daemon is busy: try again";
inline constexpr char kDrainingMessage[] =
    "the daemon is draining: use another, or come back later";

// The session, its tenant and the layout that a data verb names.
struct CallTarget {
  SessionId session;
  std::string tenant;
  std::shared_ptr<const BoundLayout> layout;
};
absl::StatusOr<CallTarget> FindTarget(RpcContext* context, uint64_t session, uint32_t handle);

// A call that gRPC, a timer and the shard hold at once: whoever lets go last deletes it. Answers
// exactly once.
class SharedCall {
 public:
  SharedCall(const SharedCall&) = delete;
  SharedCall& operator=(const SharedCall&) = delete;

 protected:
  explicit SharedCall(RpcContext* context);
  virtual ~SharedCall();

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();
  // The previous timer is forgotten.
  void SetTimer(uint64_t us);
  void CancelTimer();
  virtual void OnTimer() = 0;

  // True for the first caller, which then answers.
  bool TakeFinish();
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  RpcContext* const context_;

 private:
  std::atomic<int> refs_{1};
  std::atomic<bool> finished_{false};
  std::mutex mutex_;  // of the timer
  std::unique_ptr<grpc::Alarm> alarm_;
  uint64_t timer_ = 0;  // number of the one in force
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_RPC_CONTEXT_H_
