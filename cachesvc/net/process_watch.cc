// pidfds in an epoll set. Must never signal a process. Transport's thread.
#include "cachesvc/net/process_watch.h"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"

namespace crumb {
namespace {

constexpr uint64_t kLibrary = uint64_t{1} << 32;  // in an event's data, beside the slot
constexpr int kEventsMax = 64;

// Field 22 of /proc/PID/stat; the name in field 2 may hold anything, so count from its end.
uint64_t StartOf(uint32_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string stat = text.str();
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  uint64_t start = 0;
  std::istringstream(field) >> start;
  return start;
}

uint64_t HostOf() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat info {};
  if (!(file >> boot) || ::stat("/proc/self/ns/pid", &info) != 0) return 0;
  return Xxh3(AsBytes(absl::StrCat(boot, ":", info.st_dev, ":", info.st_ino)));
}

}  // namespace

ProcessId SelfProcess() { return ProcessOf(static_cast<uint32_t>(::getpid())); }

ProcessId ProcessOf(uint32_t pid) { return {.host = HostOf(), .start = StartOf(pid), .pid = pid}; }

absl::StatusOr<std::unique_ptr<ProcessWatch>> ProcessWatch::Create(uint32_t slots) {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd >= 0) return std::make_unique<ProcessWatch>(fd, slots);
  return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
}

ProcessWatch::ProcessWatch(int epoll_fd, uint32_t slots)
    : epoll_fd_(epoll_fd), pid_fds_(slots, -1) {}

ProcessWatch::~ProcessWatch() {
  for (int fd : pid_fds_) {
    if (fd >= 0) ::close(fd);
  }
  ::close(epoll_fd_);
}

absl::Status ProcessWatch::AddLibrary(uint32_t slot, int library_fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kLibrary | slot;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, library_fd, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
}

// The number is checked against the start time after the descriptor holds the process: from then
// on it cannot be given to another.
WatchResult ProcessWatch::Watch(uint32_t slot, const ProcessId& process) {
  Forget(slot);
  if (process.host == 0 || process.host != HostOf() || process.pid == 0) {
    return WatchResult::kUnwatchable;
  }
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0) return errno == ESRCH ? WatchResult::kGone : WatchResult::kUnwatchable;
  if (StartOf(process.pid) != process.start) {
    ::close(fd);
    return WatchResult::kGone;
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = slot;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    ::close(fd);
    return WatchResult::kUnwatchable;
  }
  pid_fds_[slot] = fd;
  return WatchResult::kWatched;
}

void ProcessWatch::Forget(uint32_t slot) {
  if (pid_fds_[slot] < 0) return;
  ::close(pid_fds_[slot]);  // leaves the set by that
  pid_fds_[slot] = -1;
}

void ProcessWatch::Take(std::vector<uint32_t>* gone, std::vector<uint32_t>* readable) {
  epoll_event events[kEventsMax];
  const int count = ::epoll_wait(epoll_fd_, events, kEventsMax, 0);
  for (int i = 0; i < count; ++i) {
    const auto slot = static_cast<uint32_t>(events[i].data.u64);
    if ((events[i].data.u64 & kLibrary) != 0) {
      readable->push_back(slot);
      continue;
    }
    Forget(slot);
    gone->push_back(slot);
  }
}

}  // namespace crumb
