// fork, exec, and one pipe for the ready line. Waiting is poll on the pipe and on a pidfd: no
// sleep.
#include "tests/support/child_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/clock.h"

namespace crumb {
namespace {

uint64_t NowUs() { return SteadyClock().now_us(); }

// Milliseconds left, at least 0.
int LeftMs(uint64_t until_us) {
  const uint64_t now_us = NowUs();
  return now_us >= until_us ? 0 : static_cast<int>((until_us - now_us) / 1000 + 1);
}

[[noreturn]] void RunChild(const ChildDaemon::Options& options, int out, int log) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execl(options.program.c_str(), options.program.c_str(), "--config", options.config_file.c_str(),
          static_cast<char*>(nullptr));
  ::_exit(127);
}

}  // namespace

ScratchDir::ScratchDir(const std::string& parent) : path_(parent + "/crumb-test-XXXXXX") {
  CRUMB_CHECK(::mkdtemp(path_.data()) != nullptr);
}
ScratchDir::~ScratchDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<ChildDaemon>> ChildDaemon::Spawn(const Options& options) {
  int pipe[2] = {-1, -1};
  if (::pipe2(pipe, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const int log = ::open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return absl::ErrnoToStatus(errno, options.log_file);
  const uint64_t now_us = NowUs();
  const pid_t pid = ::fork();
  if (pid == 0) RunChild(options, pipe[1], log);
  ::close(pipe[1]);
  ::close(log);
  if (pid < 0) {
    ::close(pipe[0]);
    return absl::ErrnoToStatus(errno, "fork");
  }
  std::unique_ptr<ChildDaemon> daemon(new ChildDaemon(pid, pipe[0]));
  daemon->spawned_us_ = now_us;
  return daemon;
}

ChildDaemon::~ChildDaemon() {
  if (pid_ > 0) Kill();
  ::close(out_);
}

bool ChildDaemon::ReadLine(uint64_t until_us, std::string* line) {
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      *line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return true;
    }
    pollfd poll{.fd = out_, .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, LeftMs(until_us)) <= 0) return false;
    char bytes[512];
    const ssize_t got = ::read(out_, bytes, sizeof(bytes));
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(got));
  }
}

absl::Status ChildDaemon::WaitReady(uint32_t timeout_ms) {
  const uint64_t until_us = NowUs() + uint64_t{timeout_ms} * 1000;
  std::string line;
  while (ReadLine(until_us, &line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() < 2 || words[0] != "crumbd" || words[1] != "ready") continue;
    ready_us_ = NowUs() - spawned_us_;
    for (const std::string& word : words) {
      const std::pair<std::string, std::string> pair =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (pair.first == "grpc") grpc_ = pair.second;
      if (pair.first == "http") http_ = pair.second;
      if (pair.first == "socket") socket_ = pair.second;
    }
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("crumbd was not ready within ", timeout_ms, " ms"));
}

void ChildDaemon::Signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void ChildDaemon::Stop() {
  Signal(SIGSTOP);
  int status = 0;
  CRUMB_CHECK(::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

int ChildDaemon::Wait(uint32_t timeout_ms) {
  if (pid_ <= 0) return -1;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  CRUMB_CHECK(pidfd >= 0);
  pollfd poll{.fd = pidfd, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&poll, 1, static_cast<int>(timeout_ms));
  ::close(pidfd);
  if (ready != 1) return -1;
  int status = -1;
  CRUMB_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return status;
}

void ChildDaemon::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  CRUMB_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
}

}  // namespace crumb
