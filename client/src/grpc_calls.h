// The calls of the gRPC plane and the queue they report to. A call owns itself: it is made by
// Start* and deletes itself when gRPC is done with it, after it left its outcome in the queue.
// Thread: made on the Client's thread, runs on gRPC's; the queue is the only thing they share.
#ifndef CRUMB_CLIENT_SRC_GRPC_CALLS_H_
#define CRUMB_CLIENT_SRC_GRPC_CALLS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "client/src/channel.h"
#include "client/src/data_plane.h"
#include "crumb/v1/cache.grpc.pb.h"

namespace crumb::client {

struct CallDone {
  uint64_t request = 0;
  uint32_t block = 0;  // of a put or get; 0 for a call that answers all blocks
  std::vector<WireBlockReply> replies;
  std::string note;      // of a put or get
  bool lost = false;     // the daemon is gone or does not know the session
  bool unheard = false;  // ended on this side: at its deadline, or cancelled
};

class CallQueue {
 public:
  CallQueue();
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // By a call, in this order: it lives; its context is about to go; all of it is gone and nothing
  // of the plane or the channel is touched again.
  // WHY three steps: a context holds its channel. Were it destroyed after the outcome is known, it
  // could be the channel's last owner, and gRPC's thread would have to end itself.
  void Enter(grpc::ClientContext* context, uint64_t request);
  void Retire(grpc::ClientContext* context);
  void Leave(CallDone done);

  // By the plane. Post: the outcome of a call that was never made.
  void Post(CallDone done);
  void Cancel(uint64_t request);
  void Take(std::vector<CallDone>* out);
  bool empty() const;
  size_t active() const;
  int fd() const { return fd_; }
  void CancelAllAndWait();

 private:
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  void Push(CallDone done);                        // under the lock
  std::map<grpc::ClientContext*, uint64_t> live_;  // with their request
  size_t active_ = 0;                              // entered and not left
  std::vector<CallDone> done_;
  int fd_;
};

struct CallEnv {
  v1::Cache::Stub* stub = nullptr;
  const Channel* channel = nullptr;
  std::shared_ptr<CallQueue> queue;
  uint64_t session = 0;
  std::chrono::system_clock::time_point deadline;  // absolute, grace included
};

// REQUIRES: the request's places were checked against its memory.
void StartPutCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block);
void StartGetCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request, uint32_t block);
// Lookup, prefetch or delete: all blocks in one call.
void StartKeysCall(const CallEnv& env, std::shared_ptr<const PlaneRequest> request);

// The outcome of a whole call that failed before it could say anything per block.
std::vector<WireBlockReply> FailedReplies(size_t count, BlockResult result);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_GRPC_CALLS_H_
