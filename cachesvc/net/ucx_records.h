// What the UCX transport remembers: one record per peer, transfer ("move") and message being sent.
// Plain data that UCX's callbacks get back as their argument, so none of it may move in memory.
// One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_UCX_RECORDS_H_
#define CRUMB_CACHESVC_NET_UCX_RECORDS_H_

#include <ucp/api/ucp.h>

#include <vector>

#include "cachesvc/net/message_slots.h"
#include "cachesvc/net/peer_regions.h"

namespace crumb {

class UcxWorker;

inline constexpr uint32_t kNoIndex = UINT32_MAX;
enum class UcxMoveKind : uint8_t { kPull, kPush };
enum class UcxReport : uint8_t { kNo, kYes };

// kDraining: failed or closed, waiting for UCX to give everything back. kDown: nothing is left
// but its kPeerDown, which is in the event ring.
enum class UcxPeerState : uint8_t { kFree, kOpen, kDraining, kDown };

struct UcxRemoteSet {
  uint32_t number = 0;
  std::vector<RegionRange> ranges;
  std::vector<ucp_rkey_h> rkeys;
};
struct UcxMoveList {  // first-in first-out, through MoveRecord::next
  uint32_t first = kNoIndex;
  uint32_t last = kNoIndex;
  bool empty() const { return first == kNoIndex; }
};
struct UcxPeer {
  UcxWorker* owner = nullptr;
  UcxPeerState state = UcxPeerState::kFree;
  bool report = false;  // kPeerDown is owed
  bool closed = false;  // the endpoint was given to UCX to close
  bool lost = false;    // it said goodbye, or UCX gave it up: nothing more is sent
  bool flushing = false;
  bool ready = false;         // in ready_
  bool flush_wanted = false;  // in flush_wanted_
  PeerId id;
  uint64_t my_cookie = 0;
  uint64_t remote_cookie = 0;
  ucp_ep_h endpoint = nullptr;
  uint32_t messages = 0;    // received and not yet polled
  uint32_t sends = 0;       // with UCX
  uint32_t operations = 0;  // with UCX
  uint32_t moves = 0;       // begun and not complete
  uint32_t strikes = 0;
  bool goodbye_in_flight = false;
  uint32_t drain_polls = 0;
  UcxMoveList queue;      // segments left to issue
  UcxMoveList unflushed;  // pushes that wait for the next flush
  UcxMoveList in_flush;   // pushes that the flush in flight covers
  std::vector<UcxRemoteSet> sets;
};
struct UcxMove {
  UcxWorker* owner = nullptr;
  UcxMoveKind kind = UcxMoveKind::kPull;
  BlockResult result = BlockResult::kOk;
  bool issued = false;  // no segment is left to issue
  uint32_t peer = 0;    // slot
  uint32_t next = kNoIndex;
  uint32_t set = 0;         // index into Peer::sets
  uint32_t operations = 0;  // with UCX
  size_t segment = 0;       // the next to issue ...
  uint64_t offset = 0;      // ... from here on
  uint64_t bytes = 0;       // issued
  Transfer transfer;
};
struct UcxSend {
  UcxWorker* owner = nullptr;
  uint32_t peer = 0;
  uint32_t slot = 0;
};
struct UcxEvent {
  NetEvent event;
  uint32_t slot = kSlotNone;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_RECORDS_H_
