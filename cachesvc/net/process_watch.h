// Notices at once when a process of this host ends, whatever the network library knows: one
// descriptor to wait on for the library's own and for every watched process (pidfd).
// Must never mistake a process for another that got its number. One thread, the transport's.
#ifndef CRUMB_CACHESVC_NET_PROCESS_WATCH_H_
#define CRUMB_CACHESVC_NET_PROCESS_WATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cachesvc/base/status.h"

namespace crumb {

// A process and where its number means something.
struct ProcessId {
  uint64_t host = 0;   // of the boot and the pid namespace; 0 = unknown
  uint64_t start = 0;  // when it started, in the kernel's ticks
  uint32_t pid = 0;
};
ProcessId SelfProcess();
// One that this process can see; start 0: there is none of that number.
ProcessId ProcessOf(uint32_t pid);

enum class WatchResult : uint8_t {
  kWatched,
  kGone,         // it has ended already
  kUnwatchable,  // of another host or namespace, or the kernel refuses
};

class ProcessWatch {
 public:
  // `slots`: processes are watched under numbers below it.
  static absl::StatusOr<std::unique_ptr<ProcessWatch>> Create(uint32_t slots);
  ProcessWatch(int epoll_fd, uint32_t slots);  // Create calls it
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Readable when a library's descriptor is, or when a watched process has ended and was not yet
  // told.
  int fd() const { return epoll_fd_; }
  // `library_fd` leaves by being closed.
  absl::Status AddLibrary(uint32_t slot, int library_fd);

  WatchResult Watch(uint32_t slot, const ProcessId& process);
  void Forget(uint32_t slot);
  // Slots of processes that ended, each told once, and of readable descriptors; at most a few at a
  // time.
  void Take(std::vector<uint32_t>* gone, std::vector<uint32_t>* readable);

 private:
  int epoll_fd_;
  std::vector<int> pid_fds_;  // by slot; -1: none
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_NET_PROCESS_WATCH_H_
