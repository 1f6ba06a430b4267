// Transport: messages from and to peers, and one-sided reads and writes of memory that peers lend.
// Implementations: ucx_ (tcp, shared memory), loopback_ (same process: tests, simulator, gRPC data
// verbs), later uds_. One thread (the shard) owns a transport.
// PROMISE: a transfer completes exactly once; after its completion the transport no longer touches
// local memory for it, and after kOk not the peer's either (a failed one may still be on its way to
// a peer that lives). Push completes with kOk only when the data is visible at the peer (flushed).
// The death of a peer fails that peer's transfers and nothing else.
#ifndef CRUMB_CACHESVC_NET_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_TRANSPORT_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "cachesvc/net/region_set.h"

namespace crumb {

// Names a peer of one transport; never reused within that transport's life.
struct PeerId {
  uint64_t value = 0;  // 0 = none
  friend bool operator==(const PeerId&, const PeerId&) = default;
};

inline constexpr uint32_t kRegionSetsPerPeerMax = 64;

struct Transfer {
  PeerId peer;
  uint32_t region_set = 0;             // registered with RegisterRegions
  absl::Span<const Segment> segments;  // valid until the completion
  MutableBytes local;                  // segment i is at local[local_offset, + bytes)
  uint64_t token = 0;
};

enum class NetEventKind : uint8_t { kMessage, kTransferDone, kPeerDown };

// Messages of one peer come in the order in which it sent them. kPeerDown comes once, as the last
// event of its peer: its transfers have completed, its id is void from then on (ClosePeer is not
// needed and does nothing).
struct NetEvent {
  NetEventKind kind = NetEventKind::kMessage;
  PeerId peer;
  uint64_t token = 0;  // kTransferDone
  // kTransferDone: kOk, kUnavailable, kInvalid (the peer does not lend that memory any more).
  BlockResult result = BlockResult::kOk;
  Bytes message;  // kMessage: valid until the next Poll
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Queues a message (copied, 1 .. kWireMessageBytesMax bytes, else kInvalid). kBusy when the
  // peer's queue is full, kUnavailable when the peer is not (or no longer) there.
  virtual BlockResult Send(PeerId peer, Bytes message) = 0;
  // Remote to local / local to remote. kOk: exactly one kTransferDone will follow. Else none will:
  // kBusy (limits reached), kUnavailable (no such peer), kInvalid (unknown region set, a segment
  // outside its region or outside `local`).
  virtual BlockResult Pull(const Transfer& transfer) = 0;
  virtual BlockResult Push(const Transfer& transfer) = 0;
  // Makes a peer's regions addressable under `region_set` (chosen by the caller, unique per peer).
  // A set that is there already is replaced, unless transfers of the peer are in flight
  // (FAILED_PRECONDITION). At most kRegionSetsPerPeerMax sets.
  virtual absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) = 0;
  // Fails what is in flight, then forgets the peer. No event is reported for it afterwards, except
  // the kTransferDone of its transfers. Messages not yet handed to the network are dropped.
  virtual void ClosePeer(PeerId peer) = 0;
  // Progress, then up to events.size() events.
  virtual size_t Poll(absl::Span<NetEvent> events) = 0;
  // Prepares for sleep on wake_fd; false = there is work, poll again.
  virtual bool Arm() = 0;
  // Readable when there may be something to Poll after Arm said true; -1: nothing can arrive but
  // through calls of the owning thread (loopback).
  virtual int wake_fd() const = 0;
};

// What a transport counted since it was made; gauges say what is held now.
struct NetStats {
  uint32_t peers = 0;                 // gauge: open
  uint32_t peers_closing = 0;         // gauge: failed or closed, operations still ending
  uint32_t transfers_pending = 0;     // gauge
  uint32_t operations_in_flight = 0;  // gauge: handed to the network library
  uint32_t messages_held = 0;         // gauge: received and not yet released, and being sent
  uint64_t messages_received = 0;
  uint64_t messages_sent = 0;
  uint64_t messages_dropped = 0;  // unknown cookie, empty, too long, not in one piece
  uint64_t messages_unsent = 0;   // lost with their peer
  uint64_t peers_lost = 0;        // kPeerDown reported
  uint64_t peers_refused = 0;     // of those: closed by us for flooding or repeated malformed input
  uint64_t bytes_pulled = 0;
  uint64_t bytes_pushed = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_TRANSPORT_H_
