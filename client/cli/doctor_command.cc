// crumbctl doctor: runs the checks and prints them. Exit 1 if any fails.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr uint32_t kDaemonMs = 1000;

struct DoctorArgs {
  std::string data_dir;
  bool fix_hints = false;
};

uint64_t SoftLimit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? ~0ull : limit.rlim_cur;
}

struct Daemon {
  std::string version;  // empty: none answers
  std::string status;   // its document; empty: it did not say
};

Check CheckDaemon(const Globals& globals, Daemon* daemon) {
  Check check{.name = "daemon"};
  absl::StatusOr<client::ChannelOptions> options = ChannelFor(globals);
  absl::Status status = options.status();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<client::Admin>> admin = client::Admin::Open(*options, kDaemonMs);
    status = admin.status();
    if (status.ok()) {
      absl::StatusOr<client::DaemonFacts> facts = (*admin)->Facts();
      status = facts.status();
      if (status.ok()) {
        daemon->version = facts->version;
        const absl::StatusOr<std::string> document = (*admin)->StatusJson();
        if (document.ok()) daemon->status = *document;
        check.text = absl::StrCat("crumbd ", facts->version, " answers at ", options->server);
        return check;
      }
    }
  }
  check.level = Level::kWarn;
  check.text = std::string(status.message());
  check.remedy = "start crumbd, or name it with --server";
  check.hint = "systemctl start crumbd";
  return check;
}

bool IsDirectory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::vector<Check> RunChecks(Context* context, const DoctorArgs& args) {
  const HostPaths paths;
  std::vector<Check> checks;
  utsname name{};
  ::uname(&name);
  checks.push_back(CheckKernel(name.release));
  checks.push_back(CheckUring());
  checks.push_back(CheckMemlock(SoftLimit(RLIMIT_MEMLOCK)));
  checks.push_back(CheckOpenFiles(SoftLimit(RLIMIT_NOFILE)));
  checks.push_back(CheckHugepages(paths));
  checks.push_back(CheckCgroup(paths));
  checks.push_back(CheckClock(paths));
  std::string directory = args.data_dir;
  if (directory.empty()) directory = IsDirectory("/var/lib/crumb") ? "/var/lib/crumb" : ".";
  for (Check& check : CheckDataDir(directory)) checks.push_back(std::move(check));
  checks.push_back(CheckUcx());
  checks.push_back(CheckShm("/dev/shm"));
  checks.push_back(CheckMappedMemory());
  const Check cuda = CheckCuda("libcuda.so.1");
  checks.push_back(cuda);
  Daemon daemon;
  checks.push_back(CheckDaemon(context->globals, &daemon));
  if (!daemon.status.empty()) checks.push_back(CheckDaemonGpu(daemon.status, cuda));
  checks.push_back(CheckPort(7411, "listen.grpc", daemon.version));
  checks.push_back(CheckPort(7412, "listen.http", daemon.version));
  return checks;
}

void Doctor(Context* context, const DoctorArgs& args) {
  const std::vector<Check> checks = RunChecks(context, args);
  nlohmann::json all = nlohmann::json::array();
  std::string rows = "CHECK\tSTATE\tFOUND\n";
  int fails = 0;
  int warns = 0;
  for (const Check& check : checks) {
    fails += check.level == Level::kFail ? 1 : 0;
    warns += check.level == Level::kWarn ? 1 : 0;
    all.push_back({{"check", check.name},
                   {"state", ToString(check.level)},
                   {"found", check.text},
                   {"remedy", check.remedy},
                   {"hint", check.hint}});
    absl::StrAppend(&rows, check.name, "\t", ToString(check.level), "\t", check.text, "\n");
    if (!check.remedy.empty()) absl::StrAppend(&rows, "\t\tremedy: ", check.remedy, "\n");
    if (args.fix_hints && !check.hint.empty()) {
      absl::StrAppend(&rows, "\t\thint:   ", check.hint, "\n");
    }
  }
  if (context->globals.json) {
    context->out << nlohmann::json{{"checks", all}, {"fails", fails}, {"warns", warns}}.dump(
                        2, ' ', false, nlohmann::json::error_handler_t::replace)
                 << "\n";
  } else {
    context->out << Table(rows);
    context->err << fails << " failed, " << warns << " warnings\n";
  }
  if (fails != 0) context->exit = kExitFailed;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Context* context) {
  auto args = std::make_shared<DoctorArgs>();
  CLI::App* doctor = app->add_subcommand(
      "doctor",
      "Checks this host: kernel, io_uring, limits, disk, UCX, CUDA, ports, clock, cgroup");
  doctor->add_flag("--fix-hints", args->fix_hints, "Print a command for each remedy");
  doctor->add_option("--data-dir", args->data_dir,
                     "Data directory to measure (/var/lib/crumb if it is there, else .)");
  doctor->footer("Example: crumbctl doctor --fix-hints --data-dir /var/lib/crumb\n");
  doctor->callback([context, args] { Doctor(context, *args); });
}

}  // namespace crumb::cli
