// A transport under test with clients on its other side, in one process: what the conformance
// suite needs of every implementation. One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_TRANSPORT_LINK_H_
#define CRUMB_TESTS_CONFORMANCE_NET_TRANSPORT_LINK_H_

#include <memory>
#include <string>
#include <vector>

#include "cachesvc/net/transport.h"

namespace crumb {

class TransportLink {
 public:
  virtual ~TransportLink() = default;
  virtual Transport& server() = 0;
  virtual NetStats stats() = 0;
  // A connected client that lends `memory_bytes`; its number.
  virtual size_t AddClient(size_t memory_bytes) = 0;
  virtual PeerId peer(size_t client) = 0;
  virtual MutableBytes memory(size_t client) = 0;
  virtual Region region(size_t client) = 0;
  virtual BlockResult ClientSend(size_t client, Bytes message) = 0;
  // Messages that the client received so far.
  virtual std::vector<std::string>& received(size_t client) = 0;
  // The client is gone without a word.
  virtual void Kill(size_t client) = 0;
  // Progress of every client that is there.
  virtual void StepClients() = 0;
};

struct LinkLimits {
  uint32_t transfers_max = 4096;
  uint32_t transfers_per_peer_max = 1024;
  uint32_t messages_max = 4096;
};

// `name`: "loopback"; "uds:sealed" or "uds:file", after what is lent; or "ucx:" or "one_sided:" and
// a list for UCX_TLS.
std::unique_ptr<TransportLink> MakeLink(const std::string& name, const LinkLimits& limits);
std::unique_ptr<TransportLink> MakeUdsLink(const std::string& name, const LinkLimits& limits);

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_TRANSPORT_LINK_H_
