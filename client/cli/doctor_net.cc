// Checks of UCX, shared memory and ports.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cachesvc/net/ucx_transport.h"
#include "cachesvc/net/uds_socket.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr double kShmWanted = 64.0 * 1024 * 1024;

}  // namespace

Check CheckUcx() {
  Check check{.name = "UCX"};
  UcxOptions options;
  options.peers_max = 1;
  options.transfers_max = 1;
  absl::StatusOr<std::unique_ptr<UcxTransport>> transport = UcxTransport::Create(options);
  if (!transport.ok()) {
    check.level = Level::kFail;
    check.text = std::string(transport.status().message());
    check.remedy = "install libucx0, and unset UCX_TLS and UCX_NET_DEVICES if they are set";
    check.hint = "apt install libucx0 && env -u UCX_TLS -u UCX_NET_DEVICES crumbctl doctor";
    return check;
  }
  check.text = (*transport)->Describe();
  const bool shared = absl::StrContains(check.text, "posix") ||
                      absl::StrContains(check.text, "sysv") || absl::StrContains(check.text, "cma");
  if (!shared) {
    check.level = Level::kWarn;
    check.remedy =
        "no shared-memory transport: clients of this host go over tcp; share /dev/shm "
        "and the IPC namespace between worker and daemon";
  }
  return check;
}

Check CheckShm(const std::string& directory) {
  Check check{.name = "shared memory"};
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) {
    check.level = Level::kWarn;
    check.text = absl::StrCat(directory, ": ", std::strerror(errno));
    check.remedy = "mount a tmpfs there: UCX wants it for shared memory";
    check.hint = absl::StrCat("mount -t tmpfs -o size=1g tmpfs ", directory);
    return check;
  }
  const double available = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  check.text = absl::StrCat(HumanBytes(available), " free in ", directory);
  if (available < kShmWanted) {
    check.level = Level::kWarn;
    check.remedy = "UCX wants some tens of MiB; in a container raise --shm-size";
    check.hint = absl::StrCat("mount -o remount,size=1g ", directory);
  }
  return check;
}

// A sealed memfd through a socket pair of our own, as a worker lends it.
Check CheckMappedMemory() {
  Check check{.name = "mapped memory"};
  const int fd = ::memfd_create("crumb-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  constexpr uint64_t kBytes = 4096;
  const bool sealed =
      fd >= 0 && ::ftruncate(fd, kBytes) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  UdsMapping mapping;
  const UdsRefusal refusal = sealed ? UdsMap(fd, kBytes, &mapping) : UdsRefusal::kNotMemory;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  UdsUnmap(mapping);
  if (refusal == UdsRefusal::kNone && mapping.steady) {
    check.text = "sealed memfds can be lent over the data socket";
    return check;
  }
  check.level = Level::kWarn;
  check.text = absl::StrCat("no sealed memfd: ", std::strerror(error));
  check.remedy =
      "allow memfd_create, F_ADD_SEALS and mmap in the container's seccomp profile; until then "
      "workers go over UCX or gRPC";
  return check;
}

Check CheckPort(uint16_t port, absl::string_view key, absl::string_view daemon_version) {
  Check check{.name = absl::StrCat("port ", port)};
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int error = 0;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    error = errno;
  }
  if (fd >= 0) ::close(fd);
  if (error == 0) {
    check.text = absl::StrCat("free (", key, ")");
  } else if (error == EADDRINUSE && !daemon_version.empty()) {
    check.text = absl::StrCat("in use; crumbd ", daemon_version, " answers here (", key, ")");
  } else {
    check.level = Level::kWarn;
    check.text = absl::StrCat(std::strerror(error), " (", key, ")");
    check.remedy = absl::StrCat("another program has it: stop that, or set ", key);
    check.hint = absl::StrCat("ss -ltnp 'sport = :", port, "'");
  }
  return check;
}

}  // namespace crumb::cli
