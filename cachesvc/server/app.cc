// The life of the process. Main thread.
#include "cachesvc/server/app.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/base/wire.h"
#include "cachesvc/net/ucx_transport.h"
#include "cachesvc/server/config.h"
#include "cachesvc/server/daemon.h"
#include "cachesvc/server/data_dir.h"
#include "cachesvc/server/files.h"
#include "cachesvc/server/log.h"
#include "gpu/codec/codec_backend.h"

namespace crumb {
namespace {

struct CommandLine {
  std::string config;
  std::vector<std::string> sets;
  bool check_config = false;
  bool version = false;
};

// -1 to go on, else the exit code.
int ParseCommandLine(int argc, char** argv, CommandLine* out) {
  CLI::App app{"crumbd: keeps KV pages of language models, compressed, for the workers of a node"};
  app.add_option("--config", out->config, "YAML file; docs/configuration.md has every key");
  app.add_option("--set", out->sets, "KEY=VALUE, over file and environment; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--check-config", out->check_config,
               "print the effective configuration and exit (2 if it is wrong)");
  app.add_flag("--version", out->version, "print versions and what is built in, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "crumbd: %s: see crumbd --help\n", error.what());
    return kExitConfig;
  }
  return -1;
}

int PrintVersion() {
  std::printf(
      "crumbd %s\npage format %u, wire %u, codec crumb 1\nbuilt with: ucx %s, cuda %s\n"
      "codec backend here: %s\n",
      Version(), unsigned{kPageFormatVersion}, unsigned{kWireVersion}, UcxVersion().c_str(),
      BuiltWithCuda() ? "yes" : "no", ToString(SupportedCodecBackends().back()));
  return kExitOk;
}

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "crumbd: %s\n", std::string(status.message()).c_str());
  return kExitConfig;
}

// Signals as readable events; every thread made later inherits the mask.
UniqueFd TakeSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

enum class Event : uint8_t { kSignal, kDone, kTimeout };

// Waits for a signal, for `done`, or until `timeout_ms` (-1: for ever) has passed.
Event Wait(const UniqueFd& signals, int done, int timeout_ms) {
  for (;;) {
    std::array<pollfd, 2> fds = {{{.fd = signals.get(), .events = POLLIN, .revents = 0},
                                  {.fd = done, .events = POLLIN, .revents = 0}}};
    const int count = poll(fds.data(), fds.size(), timeout_ms);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Event::kTimeout;
    if (fds[1].revents != 0) return Event::kDone;
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof(info)) == sizeof(info)) return Event::kSignal;
  }
}

// Runs on a thread of its own, so that signals are heard meanwhile.
class Phase {
 public:
  template <typename Function>
  explicit Phase(Function function)
      : done_(eventfd(0, EFD_CLOEXEC)), thread_([this, function] {
          function();
          const uint64_t one = 1;
          [[maybe_unused]] const ssize_t wrote = write(done_.get(), &one, sizeof(one));
        }) {}
  ~Phase() { thread_.join(); }
  int done() const { return done_.get(); }

 private:
  UniqueFd done_;
  std::thread thread_;
};

// Everything answered as durable is; the rest may be forgotten.
[[noreturn]] void LeaveAtOnce(Log& log, Event event, const std::string& fault) {
  if (event == Event::kSignal) {
    log.Warning("second signal: leaving at once");
    _exit(fault.empty() ? kExitOk : kExitGpu);
  }
  log.Error("shutdown.grace is over: leaving without an orderly end");
  _exit(fault.empty() ? kExitFault : kExitGpu);
}

int Serve(const Config& config, const UniqueFd& signals) {
  const SteadyClock clock;
  Log log({.level = config.log.level, .format = config.log.format, .node = config.node}, clock);
  const int grace_ms = static_cast<int>(config.shutdown_grace_us / 1000);
  Daemon daemon(config, log, clock);
  bool stop_early = false;
  absl::Status started;
  {
    Phase start([&] { started = daemon.Start(); });
    if (Wait(signals, start.done(), -1) == Event::kSignal) {
      stop_early = true;
      log.Info("stopping during the start");
      daemon.CancelStart();
      const Event event = Wait(signals, start.done(), grace_ms);
      if (event != Event::kDone) LeaveAtOnce(log, event, daemon.fault());
    }
  }
  if (!started.ok() && !stop_early) {
    log.Error("cannot start", {{"why", std::string(started.message())}});
    return Refuse(started);
  }
  if (!stop_early) {
    std::printf("%s\n", daemon.ReadyLine().c_str());
    std::fflush(stdout);
    log.Info("ready");
    Wait(signals, daemon.fault_fd(), -1);
    log.Info("draining", {{"grace", absl::StrCat(grace_ms, "ms")}});
  }
  absl::Status stopped;
  Phase stop([&] { stopped = daemon.Stop(); });
  const Event event = Wait(signals, stop.done(), grace_ms);
  if (event != Event::kDone) LeaveAtOnce(log, event, daemon.fault());
  log.Info("stopped");
  if (const std::string fault = daemon.fault(); !fault.empty()) {
    std::fprintf(stderr, "crumbd: %s\n", fault.c_str());
    return kExitGpu;
  }
  return stopped.ok() ? kExitOk : kExitFault;
}

int Run(int argc, char** argv) {
  CommandLine line;
  const int code = ParseCommandLine(argc, argv, &line);
  if (code >= 0) return code;
  if (line.version) return PrintVersion();
  const UniqueFd signals = TakeSignals();
  umask(077);
  const absl::StatusOr<ConfigInputs> inputs = ReadConfigInputs(line.config, line.sets);
  if (!inputs.ok()) return Refuse(inputs.status());
  const absl::StatusOr<Config> config = LoadConfig(*inputs, DetectMachine());
  if (!config.ok()) return Refuse(config.status());
  if (line.check_config) {
    if (const absl::Status probed = ProbeDataDir(config->data_dir); !probed.ok()) {
      return Refuse(absl::Status(probed.code(), absl::StrCat("data_dir: ", probed.message())));
    }
    std::fputs(PrintConfig(*config).c_str(), stdout);
    for (const std::string& warning : config->warnings) {
      std::fprintf(stderr, "crumbd: warning: %s\n", warning.c_str());
    }
    return kExitOk;
  }
  return Serve(*config, signals);
}

}  // namespace

int RunDaemon(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crumbd: internal fault: %s\n", error.what());
    return kExitFault;
  }
}

}  // namespace crumb
