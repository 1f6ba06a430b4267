// Data verbs of gRPC on the shard. Each client session that uses them gets a shadow: a session of
// the engine with one loopback peer, whose lent memory is the staging arena. So there is one data
// path, and what a client lends over UCX can never mix with the daemon's own memory.
// One thread: the shard.
#ifndef CRUMB_CACHESVC_SERVER_STREAM_HUB_H_
#define CRUMB_CACHESVC_SERVER_STREAM_HUB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/wire.h"
#include "cachesvc/core/engine.h"
#include "cachesvc/net/loopback_transport.h"

namespace crumb {

// The other end of one request. Called once, on the shard thread; must not block.
class StreamCall {
 public:
  virtual ~StreamCall() = default;
  // One reply per block; empty if the request could not be made: `result` says why.
  virtual void OnReplies(BlockResult result, absl::Span<const WireBlockReply> replies) = 0;
};

struct StreamRequest {
  SessionId session;        // the client's
  uint64_t request_id = 0;  // unique in the process
  WireType type = WireType::kLookup;
  uint16_t flags = 0;
  uint32_t layout_handle = 0;
  PageForm form = PageForm::kRaw;
  uint32_t deadline_us = 0;
  std::vector<WireBlock> blocks;
  // Put and get: one block, in this slot of the staging arena.
  uint64_t slot_bytes = 0;
  uint32_t slot = 0;
};

class StreamHub {
 public:
  StreamHub(Engine* engine, LoopbackTransport* loopback, uint32_t transport, MutableBytes arena,
            uint32_t region_sets_max);
  ~StreamHub();

  // `call` stays alive until its OnReplies.
  void Start(const StreamRequest& request, StreamCall* call);
  // Asks for an early end; OnReplies still comes. Nothing if it has come.
  void Cancel(SessionId session, uint64_t request_id);
  // Ends the shadow of a session and every call of it.
  void Close(SessionId session);
  // The tenant of a session's shadow to be.
  void Open(SessionId session, std::string tenant);

 private:
  struct RegionSlot {
    uint32_t layout_handle = 0;
    uint64_t slot_bytes = 0;
    uint64_t used = 0;  // turn of the last use
    bool registered = false;
  };
  struct Shadow {
    StreamHub* hub = nullptr;
    SessionId session;  // the engine's
    PeerId peer;
    std::string tenant;
    std::vector<RegionSlot> sets;
    std::map<uint64_t, StreamCall*> calls;  // by request id
  };

  static void OnMessage(void* arg, Bytes message);
  absl::Status Connect(Shadow* shadow);
  BlockResult FindRegionSet(Shadow* shadow, const StreamRequest& request, uint32_t* set);
  BlockResult Send(Shadow* shadow, const StreamRequest& request);
  void Disconnect(Shadow* shadow);

  Engine* engine_;
  LoopbackTransport* loopback_;
  const uint32_t transport_;
  const MutableBytes arena_;
  const uint32_t region_sets_max_;
  uint64_t turn_ = 0;
  std::map<uint64_t, std::unique_ptr<Shadow>> shadows_;  // by client session
  std::vector<uint8_t> message_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_STREAM_HUB_H_
