// A peer on the data socket that says anything: raw packets with any descriptors, for tests of what
// strangers and broken workers can do. One thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_UDS_RAW_PEER_H_
#define CRUMB_TESTS_CONFORMANCE_NET_UDS_RAW_PEER_H_

#include <string>
#include <vector>

#include "cachesvc/net/uds_frames.h"

namespace crumb {

class UdsRawPeer {
 public:
  explicit UdsRawPeer(const std::string& path);
  ~UdsRawPeer();
  UdsRawPeer(const UdsRawPeer&) = delete;
  UdsRawPeer& operator=(const UdsRawPeer&) = delete;

  int fd() const { return fd_; }
  // False: the socket did not take it.
  bool Send(Bytes packet, const std::vector<int>& fds = {});
  bool SendFrame(const UdsFrame& frame, const std::vector<int>& fds = {});
  bool Say(const std::string& message);
  bool Lend(uint64_t file, uint64_t bytes, int fd);
  // The next packet, if one is there.
  bool Receive(std::vector<uint8_t>* packet);
  // The other side hung up.
  bool closed();

 private:
  int fd_ = -1;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_UDS_RAW_PEER_H_
