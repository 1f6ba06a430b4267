// Processes, pipes and a few bytes of HTTP. One thread.
#include "tests/integ/server/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace crumb::testing {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

int MsLeft(SteadyTime until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

SteadyTime Until(int limit_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
}

// Environment of the child: ours without CRUMB_*, which would change its configuration.
std::vector<char*> CleanEnvironment() {
  std::vector<char*> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "CRUMB_", 6) != 0) out.push_back(*entry);
  }
  out.push_back(nullptr);
  return out;
}

pid_t Spawn(const std::vector<std::string>& arguments, int out, const std::string& err_path) {
  std::vector<char*> argv;
  std::vector<std::string> copy = arguments;
  copy.insert(copy.begin(), CRUMBD_PATH);
  for (std::string& argument : copy) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_addopen(&actions, 2, err_path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0600);
  std::vector<char*> environment = CleanEnvironment();
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, CRUMBD_PATH, &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

Ended WaitFor(pid_t pid, int limit_ms) {
  Ended ended;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return ended;
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  const int count = poll(&wait, 1, limit_ms);
  close(fd);
  if (count <= 0) return ended;
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return ended;
  ended.ended = true;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  return ended;
}

// Up to a newline, the end, or the limit.
std::string ReadLine(int fd, int limit_ms) {
  const SteadyTime until = Until(limit_ms);
  std::string line;
  for (;;) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, MsLeft(until)) <= 0) return line;
    char c = 0;
    if (read(fd, &c, 1) != 1 || c == '\n') return line;
    line.push_back(c);
  }
}

std::string ReadAll(int fd, int limit_ms) {
  const SteadyTime until = Until(limit_ms);
  std::string text;
  for (;;) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, MsLeft(until)) <= 0) return text;
    std::array<char, 4096> buffer;
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A connection to `place` over which `words` went; -1 if that was not to be had.
int Say(const std::string& place, const std::string& words) {
  const size_t colon = place.rfind(':');
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(place.substr(colon + 1))));
  inet_pton(AF_INET, place.substr(0, colon).c_str(), &address.sin_addr);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, words.data(), words.size()) == static_cast<ssize_t>(words.size())) {
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace

void PauseMs(int ms) { poll(nullptr, 0, ms); }

RunResult RunCrumbd(const std::vector<std::string>& arguments, int limit_ms) {
  RunResult result;
  std::string err = (std::filesystem::temp_directory_path() / "crumbd_err.XXXXXX").string();
  const int err_fd = mkstemp(err.data());
  if (err_fd < 0) return result;
  close(err_fd);
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return result;
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = Spawn(arguments, pipes[1], err);
  close(pipes[1]);
  result.out = ReadAll(pipes[0], limit_ms);
  result.ended = WaitFor(pid, limit_ms);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!result.ended.ended) {
    kill(pid, SIGKILL);
    WaitFor(pid, limit_ms);
  }
  close(pipes[0]);
  result.err = Content(err);
  unlink(err.c_str());
  return result;
}

DaemonProcess::DaemonProcess(std::string directory, std::vector<std::string> sets)
    : directory_(std::move(directory)) {
  std::vector<std::string> all = {"data_dir=" + directory_ + "/data",
                                  "listen.grpc=127.0.0.1:0",
                                  "listen.http=127.0.0.1:0",
                                  "listen.socket=" + directory_ + "/crumbd.sock",
                                  "pool.dram_bytes=32MiB",
                                  "nvme.bytes=64MiB",
                                  "nvme.segment_bytes=4MiB",
                                  "codec.threads=1",
                                  "limits.staging_bytes=16MiB"};
  all.insert(all.end(), sets.begin(), sets.end());
  for (const std::string& set : all) {
    arguments_.push_back("--set");
    arguments_.push_back(set);
  }
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait(20'000);
  }
  if (out_ >= 0) close(out_);
}

bool DaemonProcess::Start(int limit_ms) {
  int pipes[2];
  if (out_ >= 0) close(out_);
  if (pipe2(pipes, O_CLOEXEC) != 0) return false;
  pid_ = Spawn(arguments_, pipes[1], directory_ + "/log");
  close(pipes[1]);
  out_ = pipes[0];
  ready_line_ = ReadLine(out_, limit_ms);
  return ready_line_.rfind("crumbd ready ", 0) == 0;
}

void DaemonProcess::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

Ended DaemonProcess::Wait(int limit_ms) {
  const Ended ended = WaitFor(pid_, limit_ms);
  if (ended.ended) pid_ = -1;
  return ended;
}

Ended DaemonProcess::Stop(int limit_ms) {
  Signal(SIGTERM);
  return Wait(limit_ms);
}

std::string DaemonProcess::log() const { return Content(directory_ + "/log"); }

std::string DaemonProcess::Field(const std::string& name) const {
  const size_t at = ready_line_.find(name);
  if (at == std::string::npos) return {};
  const size_t begin = at + name.size();
  return ready_line_.substr(begin, ready_line_.find(' ', begin) - begin);
}

uint64_t DaemonProcess::ResidentBytes() const {
  std::istringstream status(Content("/proc/" + std::to_string(pid_) + "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

double DaemonProcess::CpuSeconds() const {
  const std::string stat = Content("/proc/" + std::to_string(pid_) + "/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string word;
  double ticks = 0;
  for (int i = 3; fields >> word && i <= 15; ++i) {
    if (i == 14 || i == 15) ticks += std::stod(word);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int DaemonProcess::OpenFds() const {
  int count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/fd", error)) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

std::string Http(const std::string& place, const std::string& method, const std::string& path) {
  const int fd =
      Say(place, method + " " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  if (fd < 0) return {};
  const std::string answer = ReadAll(fd, 10'000);
  close(fd);
  return answer;
}

HalfOpen::HalfOpen(const std::string& place, const std::string& words) : fd_(Say(place, words)) {}

HalfOpen::~HalfOpen() {
  if (fd_ >= 0) close(fd_);
}

bool HalfOpen::ClosedWithin(int limit_ms) {
  const SteadyTime until = Until(limit_ms);
  ReadAll(fd_, limit_ms);
  return MsLeft(until) > 0;
}

std::string HttpBody(const std::string& place, const std::string& path) {
  const std::string answer = Http(place, "GET", path);
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

BusyPort::BusyPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) == 0 && listen(fd_, 1) == 0 &&
      getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port_ = ntohs(address.sin_port);
  }
}

BusyPort::~BusyPort() { close(fd_); }

}  // namespace crumb::testing
