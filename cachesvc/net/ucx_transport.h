// UCX transport: active messages for requests and replies, server-driven ucp_get / ucp_put for
// data. Peers use UCP_ERR_HANDLING_MODE_PEER on both sides. One thread: created, polled and
// destroyed on the shard (Connect is called there through Loop::Post). The client library uses the
// same class.
#ifndef CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_

#include <memory>
#include <string>

#include "cachesvc/net/transport.h"

namespace crumb {

struct UcxOptions {
  std::string tls;          // UCX_TLS; empty = UCX's own choice
  std::string net_devices;  // UCX_NET_DEVICES; empty = loopback only ("lo")
  uint32_t peers_max = 1024;
  uint32_t transfers_max = 4096;
  uint32_t messages_max = 4096;  // received and not yet polled
  MutableBytes arena;            // local memory of transfers; registered once
};

class UcxTransport : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options);

  // Two sides meet by exchanging hello blobs over gRPC. A blob is {cookie, worker address}; the
  // cookie is chosen by its maker, travels in front of every message that the other side sends
  // back, and so says which peer a message came from.
  // New random cookie and the blob to send to the other side.
  virtual std::string MakeHello(uint64_t* cookie) = 0;
  // Opens an endpoint to the maker of `hello` (untrusted); messages that carry `my_cookie` are
  // reported as coming from the returned peer.
  virtual absl::StatusOr<PeerId> Connect(Bytes hello, uint64_t my_cookie) = 0;
  // Lends memory: maps it and packs its key. Client side. The mapping lives until Unlend.
  virtual absl::StatusOr<Region> Lend(MutableBytes memory) = 0;
  virtual void Unlend(const Region& region) = 0;
  // "1.13.1 (tcp, sysv, posix, cma)"
  virtual std::string Describe() const = 0;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_
