// Transport: messages from and to peers, and one-sided reads and writes of memory that peers lend.
// Implementations: ucx_ (tcp, shared memory), loopback_ (same process: tests, simulator, gRPC data
// verbs), later uds_. One thread (the shard) owns a transport.
// PROMISE: a transfer completes exactly once; after its completion neither side's memory is touched
// by it again; Push completes only when the data is visible at the peer (flushed). The death of a
// peer fails that peer's transfers and nothing else.
#ifndef CRUMB_CACHESVC_NET_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_TRANSPORT_H_

#include <cstdint>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "cachesvc/net/region_set.h"

namespace crumb {

// Names a peer of one transport; never reused within a process.
struct PeerId {
  uint64_t value = 0;  // 0 = none
  friend bool operator==(const PeerId&, const PeerId&) = default;
};

struct Transfer {
  PeerId peer;
  uint32_t region_set = 0;             // registered with RegisterRegions
  absl::Span<const Segment> segments;  // valid until the completion
  MutableBytes local;                  // segment i is at local[local_offset, + bytes)
  uint64_t token = 0;
};

enum class NetEventKind : uint8_t { kMessage, kTransferDone, kPeerDown };

struct NetEvent {
  NetEventKind kind = NetEventKind::kMessage;
  PeerId peer;
  uint64_t token = 0;                     // kTransferDone
  BlockResult result = BlockResult::kOk;  // kTransferDone: kOk, kUnavailable, kInvalid
  Bytes message;                          // kMessage: valid until the next Poll
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Queues a message (copied, at most kWireMessageBytesMax). kBusy when the peer's queue is full.
  virtual BlockResult Send(PeerId peer, Bytes message) = 0;
  // Remote to local / local to remote. kBusy when the limits are reached; else one kTransferDone.
  virtual BlockResult Pull(const Transfer& transfer) = 0;
  virtual BlockResult Push(const Transfer& transfer) = 0;
  // Makes a peer's regions addressable under `region_set` (chosen by the caller, unique per peer).
  virtual absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) = 0;
  // Fails what is in flight, then forgets the peer. No event is reported for it afterwards, except
  // the kTransferDone of its transfers.
  virtual void ClosePeer(PeerId peer) = 0;
  // Progress, then up to events.size() events.
  virtual size_t Poll(absl::Span<NetEvent> events) = 0;
  // Prepares for sleep on wake_fd; false = there is work, poll again.
  virtual bool Arm() = 0;
  virtual int wake_fd() const = 0;  // -1: must be polled
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_TRANSPORT_H_
