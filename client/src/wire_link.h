// WireLink: requests and replies as wire messages over a transport's one peer, the daemon. For the
// planes over UCX and over unix sockets. A reply that does not parse means that the two sides no
// longer agree on the stream of bytes: the link counts as lost. Thread: the Client's.
#ifndef CRUMB_CLIENT_SRC_WIRE_LINK_H_
#define CRUMB_CLIENT_SRC_WIRE_LINK_H_

#include <cstdint>
#include <vector>

#include "cachesvc/net/transport.h"
#include "client/src/data_plane.h"
#include "crumb/v1/cache.pb.h"

namespace crumb::client {

class WireLink {
 public:
  // `transport` outlives the link.
  WireLink(Transport* transport, PeerId peer, uint64_t session)
      : transport_(*transport), peer_(peer), session_(session) {}

  // Says goodbye and closes the peer.
  void Close();
  // kHello, kGoodbye, kCancel (of request `id`).
  BlockResult SendBare(WireType type, uint64_t id);
  // With `slots` (slots_per_block per block) in place of the request's own.
  BlockResult Send(const PlaneRequest& request, absl::Span<const uint32_t> slots,
                   uint32_t slots_per_block);
  // Progress. `replies` null: what arrives is dropped.
  void Pump(ReplyList* replies);
  bool Arm() { return lost_ || transport_.Arm(); }
  bool lost() const { return lost_; }
  PeerId peer() const { return peer_; }

 private:
  MutableBytes Message(uint32_t bytes);
  WireHeader HeaderFor(WireType type, uint64_t id) const;
  BlockResult Sent(BlockResult result);
  void Handle(const NetEvent& event, ReplyList* replies);

  Transport& transport_;
  const PeerId peer_;
  const uint64_t session_;
  std::vector<uint8_t> message_;  // reused
  bool lost_ = false;
};

// What the control plane is told of a region set, but for its regions.
v1::RegisterRegionsRequest DescribeSet(const LendOrder& order, const RegionSetSpec& spec);
void AddRegion(const Region& region, v1::RegisterRegionsRequest* request);

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_WIRE_LINK_H_
