// Loopback transport: peers live in the same process and lend plain memory. Used by tests, by the
// gRPC data verbs (the bytes of a stream are the lent region) and, with its own event order, by the
// simulator. One thread. Lent memory must stay valid until the peer is closed or killed.
// Everything happens in Poll, in the order of the calls, so equal calls give equal events.
#ifndef CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_

#include <memory>

#include "cachesvc/net/transport.h"

namespace crumb {

class LoopbackTransport final : public Transport {
  class Impl;

 public:
  explicit LoopbackTransport(std::unique_ptr<Impl> impl);  // Create calls it
  static std::unique_ptr<LoopbackTransport> Create(uint32_t transfers_max);
  ~LoopbackTransport() override;

  // A new peer; messages for it are handed to `on_message` during Poll. The callback may call
  // anything here but Poll. id 0: too many peers.
  PeerId AddPeer(void (*on_message)(void* arg, Bytes message), void* arg);
  // Delivers a message as if the peer had sent it. kBusy: too many are not yet polled.
  BlockResult Inject(PeerId peer, Bytes message);
  // Fails the peer's transfers, then reports kPeerDown. Its memory is not touched from here on.
  void KillPeer(PeerId peer);
  NetStats stats() const;

  BlockResult Send(PeerId peer, Bytes message) override;
  BlockResult Pull(const Transfer& transfer) override;
  BlockResult Push(const Transfer& transfer) override;
  absl::Status RegisterRegions(PeerId peer, uint32_t region_set, const RegionSet& set) override;
  void ClosePeer(PeerId peer) override;
  size_t Poll(absl::Span<NetEvent> events) override;
  bool Arm() override;
  int wake_fd() const override;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_
