// A Redis to be measured beside the daemon: its server as a child process without persistence, and
// a client of our own that is as quick as RESP allows: requests go out in one writev, a reply of
// known length comes in with one recv, straight to where it belongs. One thread.
#ifndef CRUMB_TESTS_BENCH_REDIS_PEER_H_
#define CRUMB_TESTS_BENCH_REDIS_PEER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb::bench {

class RedisServer {
 public:
  // Listens on DIR/redis.sock and on a loopback port that it was given free. NOT_FOUND without a
  // redis-server on the PATH.
  static absl::StatusOr<std::unique_ptr<RedisServer>> Start(const std::string& dir);
  ~RedisServer();  // SIGKILL
  const std::string& socket() const { return socket_; }
  uint16_t port() const { return port_; }
  const std::string& version() const { return version_; }

 private:
  RedisServer() = default;
  pid_t pid_ = -1;
  std::string socket_, version_;
  uint16_t port_ = 0;
};

class RedisClient {
 public:
  static absl::StatusOr<std::unique_ptr<RedisClient>> ConnectUnix(const std::string& path);
  static absl::StatusOr<std::unique_ptr<RedisClient>> ConnectTcp(uint16_t port);
  ~RedisClient();

  // Queued in the socket; answers come in order. False: the connection is lost.
  bool SendGet(std::string_view key);
  bool SendSet(std::string_view key, Bytes value);
  // Of a get whose value has this size: `reply` is filled, the value is at the returned offset.
  // 0: a miss, an error or a value of another size.
  size_t ReceiveValue(size_t value_bytes, MutableBytes reply);
  bool ReceiveOk();
  static size_t ReplyBytes(size_t value_bytes);

 private:
  explicit RedisClient(int fd) : fd_(fd) {}
  bool ReceiveAll(uint8_t* to, size_t bytes);
  int fd_;
};

}  // namespace crumb::bench

#endif  // CRUMB_TESTS_BENCH_REDIS_PEER_H_
