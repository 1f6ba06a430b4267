// System calls, each answer checked. Any thread; nothing here blocks.
#include "cachesvc/net/uds_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crumb {
namespace {

constexpr int kBacklog = 128;
constexpr int kBufferBytes = 1 << 20;  // several of the largest packets; the kernel may give less
constexpr size_t kFdsSeen = 4;         // more are cut by the kernel, which closes them
constexpr decltype(statfs::f_type) kHugeTlbFs = 0x958458f6;

absl::Status Refused(const std::string& path, const char* what, int error) {
  const std::string text = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  const bool nobody = error == ECONNREFUSED || error == ENOENT || error == EAGAIN;
  return nobody ? absl::UnavailableError(text) : absl::FailedPreconditionError(text);
}

absl::Status AddressOf(const std::string& path, sockaddr_un* out) {
  *out = {};
  out->sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(out->sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a socket's path has 1 to ", sizeof(out->sun_path) - 1, " bytes"));
  }
  std::memcpy(out->sun_path, path.c_str(), path.size());
  return absl::OkStatus();
}

void SetBuffers(int fd) {  // best effort: the default holds one packet of any size
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
}

// Closes every descriptor that came with the packet but the first, which it returns.
struct Descriptors {
  size_t count = 0;
  int first = -1;
};
Descriptors TakeDescriptors(msghdr* message) {
  Descriptors got;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      if (got.count++ == 0) {
        got.first = fd;
      } else {
        close(fd);
      }
    }
  }
  return got;
}

}  // namespace

absl::StatusOr<int> UdsListen(const std::string& path) {
  sockaddr_un address;
  CRUMB_TRY(AddressOf(path, &address));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Refused(path, "socket", errno);
  // Nobody can connect before listen, so the mode is right from the first connection on.
  const char* what = "bind";
  bool ok = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (ok) {
    what = "chmod";
    ok = chmod(path.c_str(), 0600) == 0;
  }
  if (ok) {
    what = "listen";
    ok = listen(fd, kBacklog) == 0;
  }
  if (ok) return fd;
  const absl::Status status = Refused(path, what, errno);
  close(fd);
  return status;
}

absl::StatusOr<int> UdsConnect(const std::string& path) {
  sockaddr_un address;
  CRUMB_TRY(AddressOf(path, &address));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Refused(path, "socket", errno);
  SetBuffers(fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  const absl::Status status = Refused(path, "connect", errno);
  close(fd);
  return status;
}

int UdsAccept(int listen_fd) {
  const int fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) SetBuffers(fd);
  return fd;
}

UdsIo UdsSend(int socket, Bytes header, Bytes body, int fd) {
  std::array<iovec, 2> parts = {iovec{const_cast<uint8_t*>(header.data()), header.size()},
                                iovec{const_cast<uint8_t*>(body.data()), body.size()}};
  alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = body.empty() ? 1 : 2;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return UdsIo::kDone;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: descriptors of ours that nobody has taken yet; they will be.
    const bool later = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
    return later || errno == ETOOMANYREFS ? UdsIo::kAgain : UdsIo::kClosed;
  }
}

UdsIo UdsReceive(int socket, MutableBytes buffer, UdsPacket* packet) {
  *packet = {};
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(kFdsSeen * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? UdsIo::kAgain : UdsIo::kClosed;
  const Descriptors fds = TakeDescriptors(&message);
  packet->lost = (message.msg_flags & MSG_CTRUNC) != 0 && fds.count == 0;
  const bool cut = (message.msg_flags & MSG_TRUNC) != 0 ||
                   ((message.msg_flags & MSG_CTRUNC) != 0 && !packet->lost);
  packet->whole = !cut && fds.count <= 1;
  packet->bytes = static_cast<size_t>(got);
  if (packet->whole) {
    packet->fd = fds.first;
  } else if (fds.first >= 0) {
    close(fds.first);
  }
  if (got > 0) return UdsIo::kDone;
  // The end of the stream; an empty packet looks the same and is none that we know.
  if (packet->fd >= 0) close(packet->fd);
  packet->fd = -1;
  return UdsIo::kClosed;
}

UdsRefusal UdsMap(int fd, uint64_t bytes, UdsMapping* out) {
  // WHY seals first: the kernel knows them for files in memory only, and asking touches no file
  // system. Any other call could wait for ever for whoever serves the file.
  const int seals = fcntl(fd, F_GET_SEALS);
  const int mode = fcntl(fd, F_GETFL);
  if (seals < 0 || mode < 0 || (mode & O_PATH) != 0) return UdsRefusal::kNotMemory;
  struct stat info {};
  struct statfs system {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || fstatfs(fd, &system) != 0) {
    return UdsRefusal::kNotMemory;
  }
  if (bytes == 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return UdsRefusal::kTooShort;
  }
  UdsMapping made{.base = nullptr, .bytes = bytes, .writable = true, .steady = false};
  if ((mode & O_ACCMODE) == O_WRONLY) return UdsRefusal::kNoMapping;
  void* at = MAP_FAILED;
  if ((mode & O_ACCMODE) == O_RDWR) {
    at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (at == MAP_FAILED) {  // opened or sealed for reading: enough for puts
    made.writable = false;
    at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (at == MAP_FAILED) return UdsRefusal::kNoMapping;
  (void)madvise(at, bytes, MADV_DONTFORK);
  (void)madvise(at, bytes, MADV_DONTDUMP);  // a core file of ours holds no memory of theirs
  made.base = static_cast<uint8_t*>(at);
  // Huge pages may be missing when they are first touched, however the file is sealed.
  made.steady = (seals & F_SEAL_SHRINK) != 0 && system.f_type != kHugeTlbFs;
  *out = made;
  return UdsRefusal::kNone;
}

void UdsUnmap(const UdsMapping& mapping) {
  if (mapping.base != nullptr) munmap(mapping.base, mapping.bytes);
}

}  // namespace crumb
