// Waits for the server by connecting again, each time after a poll on its pidfd.
#include "tests/bench/redis_peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace crumb::bench {
namespace {

constexpr int kStartTries = 500;
constexpr int kTryMs = 10;
constexpr size_t kKeyBytesMax = 200;

// A port that nobody has; Redis binds it a moment later.
uint16_t FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  uint16_t port = 0;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  ::close(fd);
  return port;
}

[[noreturn]] void RunServer(const std::string& dir, const std::string& socket, uint16_t port) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  const std::string port_text = std::to_string(port);
  ::execlp("redis-server", "redis-server", "--port", port_text.c_str(), "--bind", "127.0.0.1",
           "--unixsocket", socket.c_str(), "--save", "", "--appendonly", "no", "--dir", dir.c_str(),
           "--maxmemory", "0", static_cast<char*>(nullptr));
  ::_exit(127);
}

std::string Version() {
  FILE* const pipe = ::popen("redis-server --version 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  char line[256] = {};
  const bool read = std::fgets(line, sizeof(line), pipe) != nullptr;
  ::pclose(pipe);
  const char* const at = read ? std::strstr(line, "v=") : nullptr;
  return at == nullptr ? "" : std::string(at + 2, std::strcspn(at + 2, " \n"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisServer>> RedisServer::Start(const std::string& dir) {
  std::unique_ptr<RedisServer> server(new RedisServer());
  server->version_ = Version();
  if (server->version_.empty()) {
    return absl::NotFoundError("no redis-server: apt-get install redis-server");
  }
  server->socket_ = dir + "/redis.sock";
  server->port_ = FreePort();
  server->pid_ = ::fork();
  if (server->pid_ == 0) RunServer(dir, server->socket_, server->port_);
  if (server->pid_ < 0) return absl::ErrnoToStatus(errno, "fork");
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, server->pid_, 0));
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  absl::Status status = absl::UnavailableError("redis-server does not answer");
  for (int i = 0; i < kStartTries && !status.ok(); ++i) {
    if (::poll(&ended, 1, kTryMs) != 0) break;
    status = RedisClient::ConnectUnix(server->socket_).status();
  }
  ::close(pidfd);
  if (!status.ok()) return status;
  return server;
}

RedisServer::~RedisServer() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError("path too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::unique_ptr<RedisClient> client(new RedisClient(fd));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, path);
  }
  return client;
}

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::ConnectTcp(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::unique_ptr<RedisClient> client(new RedisClient(fd));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("127.0.0.1:", port));
  }
  return client;
}

RedisClient::~RedisClient() { ::close(fd_); }

bool RedisClient::SendGet(std::string_view key) {
  char text[kKeyBytesMax + 64];
  if (key.size() > kKeyBytesMax) return false;
  const int size = std::snprintf(text, sizeof(text), "*2\r\n$3\r\nGET\r\n$%zu\r\n%.*s\r\n",
                                 key.size(), static_cast<int>(key.size()), key.data());
  return ::send(fd_, text, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
}

bool RedisClient::SendSet(std::string_view key, Bytes value) {
  char text[kKeyBytesMax + 64];
  if (key.size() > kKeyBytesMax) return false;
  const int size =
      std::snprintf(text, sizeof(text), "*3\r\n$3\r\nSET\r\n$%zu\r\n%.*s\r\n$%zu\r\n", key.size(),
                    static_cast<int>(key.size()), key.data(), value.size());
  char end[] = "\r\n";
  std::array<iovec, 3> parts = {
      iovec{.iov_base = text, .iov_len = static_cast<size_t>(size)},
      iovec{.iov_base = const_cast<uint8_t*>(value.data()), .iov_len = value.size()},
      iovec{.iov_base = end, .iov_len = 2}};
  for (size_t first = 0; first < parts.size();) {
    ssize_t sent = ::writev(fd_, &parts[first], static_cast<int>(parts.size() - first));
    if (sent <= 0) return false;
    while (first < parts.size() && static_cast<size_t>(sent) >= parts[first].iov_len) {
      sent -= static_cast<ssize_t>(parts[first++].iov_len);
    }
    if (first == parts.size()) break;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + sent;
    parts[first].iov_len -= static_cast<size_t>(sent);
  }
  return true;
}

bool RedisClient::ReceiveAll(uint8_t* to, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t got = ::recv(fd_, to + at, bytes - at, MSG_WAITALL);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

size_t RedisClient::ReplyBytes(size_t value_bytes) {
  return absl::StrCat("$", value_bytes, "\r\n").size() + value_bytes + 2;
}

size_t RedisClient::ReceiveValue(size_t value_bytes, MutableBytes reply) {
  char head[32];
  const auto head_bytes =
      static_cast<size_t>(std::snprintf(head, sizeof(head), "$%zu\r\n", value_bytes));
  // The first bytes tell a miss from a value; the rest comes in one call.
  constexpr size_t kShortest = 4;  // "$-1\r"
  if (reply.size() < head_bytes + value_bytes + 2) return 0;
  if (!ReceiveAll(reply.data(), kShortest)) return 0;
  if (std::memcmp(reply.data(), head, std::min(kShortest, head_bytes)) != 0) return 0;
  if (!ReceiveAll(reply.data() + kShortest, head_bytes + value_bytes + 2 - kShortest)) return 0;
  return std::memcmp(reply.data(), head, head_bytes) == 0 ? head_bytes : 0;
}

bool RedisClient::ReceiveOk() {
  uint8_t reply[5];
  return ReceiveAll(reply, sizeof(reply)) && std::memcmp(reply, "+OK\r\n", 5) == 0;
}

}  // namespace crumb::bench
