// A peer that speaks UCX but not our protocol: sends any active message to a UcxTransport. For
// tests of what strangers and broken peers can do. One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_UCX_RAW_PEER_H_
#define CRUMB_TESTS_CONFORMANCE_NET_UCX_RAW_PEER_H_

#include <memory>
#include <string>

#include "cachesvc/base/types.h"

namespace crumb {

enum class RawProtocol : uint8_t { kEager, kRendezvous };

class UcxRawPeer {
 public:
  static std::unique_ptr<UcxRawPeer> Create(const std::string& tls);
  virtual ~UcxRawPeer() = default;
  // A hello that the transport under test accepts.
  virtual std::string Hello(uint64_t cookie) = 0;
  // `hello`: of the transport under test. Gives the cookie that its messages must carry.
  virtual uint64_t Connect(Bytes hello) = 0;
  // The bytes are copied. Counts in done() when UCX finished, in failed() too if with an error.
  virtual void Send(unsigned id, Bytes header, Bytes data, RawProtocol protocol) = 0;
  virtual void Progress() = 0;
  virtual int done() const = 0;
  virtual int failed() const = 0;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_UCX_RAW_PEER_H_
