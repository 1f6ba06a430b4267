// Memory that a worker shares with the daemon of its host: pages in it move with one copy and no
// work of the worker. Make it here, or adopt what an engine mapped (Client::ShareMemory takes any
// mapping of a file in memory, /dev/shm say). One thread at a time.
#ifndef CRUMB_SHARED_MEMORY_H_
#define CRUMB_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "crumb/types.h"

namespace crumb::client {

// A mapping of part of a file: [address, address + bytes) is the file's [offset, offset + bytes),
// mapped shared. Page-aligned.
struct SharedRange {
  int fd = -1;
  uint64_t offset = 0;
  void* address = nullptr;
  uint64_t bytes = 0;
};

class CRUMB_API SharedMemory {
 public:
  // An anonymous file of `bytes` (rounded up to whole pages), zeroed, mapped, and sealed: it can
  // neither shrink nor grow, so the daemon may copy from it without care.
  static Status Create(uint64_t bytes, std::unique_ptr<SharedMemory>* out);
  // Unmaps. Must outlive the Clients that were told of it.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(range_.address); }
  uint64_t bytes() const { return range_.bytes; }
  const SharedRange& range() const { return range_; }

 private:
  explicit SharedMemory(const SharedRange& range) : range_(range) {}
  SharedRange range_;
};

}  // namespace crumb::client

#endif  // CRUMB_SHARED_MEMORY_H_
