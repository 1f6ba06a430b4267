// UCX transport: active messages for requests and replies, and for data: the side that drives asks
// for ranges or sends what to write there, the side that lent them copies (both must Poll). Over
// RDMA hardware `one_sided` drives ucp_get and ucp_put instead. UCP_ERR_HANDLING_MODE_PEER. One
// thread: created, polled and destroyed on the shard (Connect is called there through Loop::Post).
// The client library uses the same class. Create after fork, never before. Must never let one peer
// hold another up: every queue has a bound of its own per peer.
#ifndef CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_
#define CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_

#include <memory>
#include <string>

#include "cachesvc/net/transport.h"

namespace crumb {

struct UcxOptions {
  std::string tls;          // UCX_TLS; empty = UCX's own choice
  std::string net_devices;  // UCX_NET_DEVICES; empty = loopback only ("lo")
  uint32_t peers_max = 256;
  uint32_t transfers_max = 4096;
  uint32_t transfers_per_peer_max = 1024;
  uint32_t operations_max = 1024;         // pieces of transfers in flight, all peers
  uint32_t operations_per_peer_max = 32;  // the rest waits here, not in the library
  uint32_t messages_max = 4096;           // received and not yet polled
  uint32_t messages_per_peer_max = 256;   // of one peer: one more and it is closed
  uint32_t sends_max = 4096;              // given to Send and not yet taken by the network
  uint32_t sends_per_peer_max = 256;
  uint64_t keepalive_us = 1'000'000;    // how often UCX looks for the silent death of a peer
  uint64_t first_word_us = 10'000'000;  // a peer that is not heard of for so long is given up
  // Both sides must set it. WHY off: over tcp and shared memory UCX emulates these calls, and its
  // emulation ends the process whose memory is accessed when the other side dies at a bad moment,
  // besides accessing any address that a peer names.
  bool one_sided = false;
  MutableBytes arena;  // one-sided: local memory of transfers; registered once
};

inline constexpr uint32_t kHelloBytesMax = 16 * 1024;
// The shared-memory queue through which others reach a transport: places, and the bytes of one
// message that go into one place. Both sides must agree.
inline constexpr uint32_t kUcxFifoSlots = 64;
inline constexpr uint32_t kUcxSegmentBytes = 20 * 1024;

// Of the library in use: "1.13.1". Any thread; starts nothing.
std::string UcxVersion();

class UcxCore;  // ucx_core.h

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::unique_ptr<UcxCore> core);  // Create calls it
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options);
  // Closes every peer and waits for the operations in flight: afterwards no memory is touched.
  ~UcxTransport() override;

  // Two sides meet by exchanging hello blobs over gRPC. A blob is {cookie, worker address}; the
  // cookie is chosen by its maker, travels in front of every message that the other side sends
  // back, and so says which peer a message came from.
  // New random cookie and the blob to send to the other side. Empty: peers_max, or UCX gives no
  // worker. Costs milliseconds. The oldest of 16 unused hellos gives way to a new one.
  std::string MakeHello(uint64_t* cookie);
  // Opens an endpoint to the maker of `hello` (untrusted); messages that carry `my_cookie` are
  // reported as coming from the returned peer. INVALID_ARGUMENT: the blob is damaged or of another
  // version; RESOURCE_EXHAUSTED: no hello of ours with this cookie waits.
  absl::StatusOr<PeerId> Connect(Bytes hello, uint64_t my_cookie);
  // Lends memory: peers may read and write it. It must stay valid until Unlend.
  absl::StatusOr<Region> Lend(MutableBytes memory);
  void Unlend(const Region& region);
  // "1.13.1 (tcp, sysv, posix, cma)"
  std::string Describe() const;
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
  std::unique_ptr<UcxCore> core_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UCX_TRANSPORT_H_
