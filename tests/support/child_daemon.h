// A real crumbd as a child process: started with a configuration, waited for until it is ready,
// killed or ended. One thread. The child dies with its parent.
#ifndef CRUMB_TESTS_SUPPORT_CHILD_DAEMON_H_
#define CRUMB_TESTS_SUPPORT_CHILD_DAEMON_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cachesvc/base/status.h"

namespace crumb {

// A directory of its own, removed at the end.
class ScratchDir {
 public:
  explicit ScratchDir(const std::string& parent = "/tmp");
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class ChildDaemon {
 public:
  struct Options {
    std::string program;      // crumbd
    std::string config_file;  // written by the caller
    std::string log_file;     // stderr, appended
  };
  // Returns as soon as the child runs.
  static absl::StatusOr<std::unique_ptr<ChildDaemon>> Spawn(const Options& options);
  ~ChildDaemon();  // SIGKILL if it still runs

  // Waits for the ready line; UNAVAILABLE if the child ends or the time passes first.
  absl::Status WaitReady(uint32_t timeout_ms);
  // From fork to the ready line.
  uint64_t ready_us() const { return ready_us_; }
  const std::string& grpc() const { return grpc_; }
  const std::string& http() const { return http_; }
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return pid_; }

  void Signal(int number) const;
  // SIGSTOP, and returns when all its threads stand still.
  void Stop();
  // Exit status as waitpid gives it; -1 if it does not end in time.
  int Wait(uint32_t timeout_ms);
  void Kill();  // SIGKILL and reap

 private:
  ChildDaemon(pid_t pid, int out) : pid_(pid), out_(out) {}
  bool ReadLine(uint64_t until_us, std::string* line);

  pid_t pid_ = -1;
  int out_ = -1;
  uint64_t spawned_us_ = 0;
  uint64_t ready_us_ = 0;
  std::string buffer_, grpc_, http_, socket_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_SUPPORT_CHILD_DAEMON_H_
