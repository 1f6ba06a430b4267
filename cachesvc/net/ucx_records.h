// What the UCX transport remembers: one record per peer, transfer ("move"), copy under way and
// message being sent. Plain data that UCX's callbacks get back as their argument, so none of it may
// move in memory. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_UCX_RECORDS_H_
#define CRUMB_CACHESVC_NET_UCX_RECORDS_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <vector>

#include "cachesvc/net/copy_wire.h"
#include "cachesvc/net/peer_regions.h"
#include "cachesvc/net/slot_pool.h"
#include "cachesvc/net/ucx_link.h"

namespace crumb {

class UcxCore;

inline constexpr uint32_t kNoIndex = UINT32_MAX;
// Sends of the data path that UCX may keep for one peer: more would pile up behind a peer that does
// not take them.
inline constexpr uint32_t kUcxDataSendsMax = 2;
enum class UcxMoveKind : uint8_t { kPull, kPush };
enum class UcxReport : uint8_t { kNo, kYes };

// kHello: has a hello out, not connected. kLeaving: failed or closed, its moves have ended, a
// goodbye may be under way. kDown: nothing is left but its kPeerDown, in the event ring.
enum class UcxPeerState : uint8_t { kFree, kHello, kOpen, kLeaving, kDown };

struct UcxRemoteSet {
  uint32_t number = 0;
  std::vector<RegionRange> ranges;
  std::vector<ucp_rkey_h> rkeys;  // one-sided peers only
};

struct UcxMoveList {  // first-in first-out, through UcxMove::next
  uint32_t first = kNoIndex;
  uint32_t last = kNoIndex;
  bool empty() const { return first == kNoIndex; }
};

struct UcxPeer {
  UcxCore* owner = nullptr;
  UcxPeerState state = UcxPeerState::kFree;
  bool one_sided = false;     // ucp_get / ucp_put, else copy messages
  bool report = false;        // kPeerDown is owed
  bool silent = false;        // failed, gone or left: no goodbye
  bool heard = false;         // it said anything
  bool flushing = false;      // one-sided
  bool ready = false;         // in ready_
  bool flush_wanted = false;  // in flush_wanted_
  PeerId id;
  uint64_t connected_us = 0;
  uint64_t my_cookie = 0;
  uint64_t remote_cookie = 0;
  uint32_t messages = 0;    // received and not yet polled
  uint32_t text_sends = 0;  // messages with UCX
  uint32_t data_sends = 0;  // sends of the data path with UCX
  uint32_t operations = 0;  // copies not answered, or one-sided operations with UCX
  uint32_t answers = 0;     // owed to it
  uint32_t moves = 0;       // begun and not complete
  uint32_t strikes = 0;
  uint32_t idle_polls = 0;   // since it did anything
  uint32_t leave_polls = 0;  // in kLeaving
  UcxMoveList queue;         // segments left to issue
  UcxMoveList unflushed;     // one-sided pushes that wait for the next flush
  UcxMoveList in_flush;      // and those that the flush in flight covers
  std::vector<UcxRemoteSet> sets;
  std::unique_ptr<UcxLink> link;
};

struct UcxMove {
  UcxCore* owner = nullptr;  // null: free
  UcxMoveKind kind = UcxMoveKind::kPull;
  BlockResult result = BlockResult::kOk;
  bool issued = false;  // no segment is left to issue
  uint32_t peer = 0;    // slot
  uint32_t next = kNoIndex;
  uint32_t set = 0;         // index into UcxPeer::sets
  uint32_t operations = 0;  // not ended
  size_t segment = 0;       // the next to issue ...
  uint64_t offset = 0;      // ... from here on
  uint64_t bytes = 0;       // issued
  Transfer transfer;
};

// One read or write that the peer has not answered. Its number on the wire is its index and
// generation, so that a late answer finds nothing.
struct UcxCopy {
  uint32_t move = kNoIndex;  // kNoIndex: free
  uint32_t generation = 0;
  PieceWalk::Start start;
};

// A read to answer, or a write that was carried out and is to be acknowledged.
struct UcxAnswer {
  PeerId peer;
  CopyKind kind = CopyKind::kRead;
  uint32_t slot = kSlotNone;  // kRead: the request, in a receive slot
  uint32_t bytes = 0;
  uint64_t operation = 0;  // kWrite
  uint32_t outcome = 0;
};

enum class UcxSendKind : uint8_t { kFree, kMessage, kBare, kData };
struct UcxSend : UcxSendBase {
  UcxCore* owner = nullptr;
  UcxSendKind kind = UcxSendKind::kFree;
  uint32_t peer = 0;
  uint32_t slot = 0;
};

struct UcxEvent {
  NetEvent event;
  uint32_t slot = kSlotNone;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_RECORDS_H_
