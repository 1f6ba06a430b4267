// System calls of the unix-socket transport: sockets, packets with and without a descriptor, and
// the mapping of a file that came with one. Must never leave a received descriptor open. Any
// thread.
#ifndef CRUMB_CACHESVC_NET_UDS_SOCKET_H_
#define CRUMB_CACHESVC_NET_UDS_SOCKET_H_

#include <string>

#include "cachesvc/base/status.h"
#include "cachesvc/net/uds_frames.h"

namespace crumb {

// Non-blocking, close-on-exec SOCK_SEQPACKET sockets; the caller closes them.
absl::StatusOr<int> UdsListen(const std::string& path);
absl::StatusOr<int> UdsConnect(const std::string& path);
// A connection, with its buffers set. -1: none waits, or the limit of descriptors is reached
// (errno).
int UdsAccept(int listen_fd);

enum class UdsIo : uint8_t { kDone, kAgain, kClosed };
// Header and body leave as one packet; `fd` -1: none goes with it.
UdsIo UdsSend(int socket, Bytes header, Bytes body, int fd);

struct UdsPacket {
  size_t bytes = 0;
  int fd = -1;        // the receiver's to close
  bool lost = false;  // a descriptor came, and this process has no room for another
  bool whole = true;  // false: cut, or with more or other descriptors than one; all were closed
};
// `buffer` is at least one byte longer than any packet that is accepted.
UdsIo UdsReceive(int socket, MutableBytes buffer, UdsPacket* packet);

struct UdsMapping {
  uint8_t* base = nullptr;
  uint64_t bytes = 0;
  bool writable = false;
  bool steady = false;  // sealed: cannot shrink
};
// Maps the first `bytes` of the file. Touches no file system but those in memory: others may block.
UdsRefusal UdsMap(int fd, uint64_t bytes, UdsMapping* out);
void UdsUnmap(const UdsMapping& mapping);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_UDS_SOCKET_H_
