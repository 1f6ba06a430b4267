// crumbd as a child process of a test: real binary, port 0, a directory of its own. One thread.
// Nothing here sleeps: it waits on pipes and process descriptors, with limits.
#ifndef CRUMB_TESTS_INTEG_SERVER_DAEMON_PROCESS_H_
#define CRUMB_TESTS_INTEG_SERVER_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace crumb::testing {

// How a process ended.
struct Ended {
  bool ended = false;  // false: still running after the limit
  int code = -1;       // exit code, or -1
  int signal = 0;
};

struct RunResult {
  Ended ended;
  std::string out;
  std::string err;
  double seconds = 0;
};

// Runs crumbd to its end (at most `limit_ms`; killed afterwards).
RunResult RunCrumbd(const std::vector<std::string>& arguments, int limit_ms = 20'000);

class DaemonProcess {
 public:
  // `directory` keeps data, socket and logs; `sets` are --set KEY=VALUE over small defaults.
  explicit DaemonProcess(std::string directory, std::vector<std::string> sets = {});
  ~DaemonProcess();  // kills it
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // True once it printed its ready line.
  bool Start(int limit_ms = 20'000);
  void Signal(int number);
  Ended Wait(int limit_ms);
  // SIGTERM and wait.
  Ended Stop(int limit_ms = 20'000);

  pid_t pid() const { return pid_; }
  const std::string& ready_line() const { return ready_line_; }
  std::string grpc() const { return Field("grpc="); }
  std::string http() const { return Field("http="); }
  std::string socket() const { return "unix:" + Field("socket="); }
  std::string log() const;  // what it wrote to stderr
  const std::vector<std::string>& arguments() const { return arguments_; }
  uint64_t ResidentBytes() const;
  double CpuSeconds() const;
  int OpenFds() const;

 private:
  std::string Field(const std::string& name) const;

  std::string directory_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  int out_ = -1;
  std::string ready_line_;
};

// The answer to "METHOD PATH" from HOST:PORT, whole; empty if nobody answers.
std::string Http(const std::string& place, const std::string& method, const std::string& path);
// The body of a GET.
std::string HttpBody(const std::string& place, const std::string& path);
// A connection to HOST:PORT that says something and then nothing more.
class HalfOpen {
 public:
  HalfOpen(const std::string& place, const std::string& words);
  ~HalfOpen();
  HalfOpen(const HalfOpen&) = delete;
  HalfOpen& operator=(const HalfOpen&) = delete;
  bool connected() const { return fd_ >= 0; }
  // True once the other side closed it.
  bool ClosedWithin(int limit_ms);

 private:
  int fd_ = -1;
};

// A listening TCP socket on a free loopback port, for "the port is busy".
class BusyPort {
 public:
  BusyPort();
  ~BusyPort();
  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

// Polls `done` every few milliseconds until it is true or the limit has passed.
template <typename Done>
bool Eventually(Done done, int limit_ms);
void PauseMs(int ms);  // by poll on nothing: for processes of their own pace

template <typename Done>
bool Eventually(Done done, int limit_ms) {
  for (int waited = 0; waited <= limit_ms; waited += 20) {
    if (done()) return true;
    PauseMs(20);
  }
  return done();
}

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_INTEG_SERVER_DAEMON_PROCESS_H_
