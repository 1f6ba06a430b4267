// Loopback transport: peers live in the same process and lend plain memory. Used by tests, by the
// gRPC data verbs (the bytes of a stream are the lent region) and, with its own event order, by the
// simulator. One thread.
#ifndef CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_

#include <memory>

#include "cachesvc/net/transport.h"

namespace crumb {

class LoopbackTransport : public Transport {
 public:
  static std::unique_ptr<LoopbackTransport> Create(uint32_t transfers_max);

  // A new peer; messages for it are handed to `on_message` during Poll.
  virtual PeerId AddPeer(void (*on_message)(void* arg, Bytes message), void* arg) = 0;
  // Delivers a message as if the peer had sent it.
  virtual BlockResult Inject(PeerId peer, Bytes message) = 0;
  // Reports kPeerDown and fails its transfers.
  virtual void KillPeer(PeerId peer) = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_LOOPBACK_TRANSPORT_H_
