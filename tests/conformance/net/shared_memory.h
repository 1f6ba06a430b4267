// Memory that a test lends over unix sockets: a memfd, sealed or not, or a file of a memory file
// system, mapped here. Also the private folder for a test's sockets. Removes what it made. One
// thread.
#ifndef CRUMB_TESTS_CONFORMANCE_NET_SHARED_MEMORY_H_
#define CRUMB_TESTS_CONFORMANCE_NET_SHARED_MEMORY_H_

#include <string>

#include "cachesvc/net/uds_transport.h"

namespace crumb {

enum class SharedKind : uint8_t { kSealed, kFile };

class SharedMemory {
 public:
  SharedMemory(size_t bytes, SharedKind kind);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int fd() const { return fd_; }
  MutableBytes bytes() const { return bytes_; }
  SharedRange range() const {
    return {.fd = fd_,
            .offset = 0,
            .bytes = bytes_.size(),
            .address = reinterpret_cast<uint64_t>(bytes_.data())};
  }

 private:
  int fd_ = -1;
  MutableBytes bytes_;
};

class SocketFolder {
 public:
  SocketFolder();
  ~SocketFolder();
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_CONFORMANCE_NET_SHARED_MEMORY_H_
