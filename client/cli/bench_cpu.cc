// The kernel's word about this process, the status page's about the daemon.
#include "client/cli/bench_cpu.h"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

namespace crumb::cli {

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double DaemonCpuSeconds(const Globals& globals) {
  absl::StatusOr<std::unique_ptr<client::Admin>> admin = OpenAdmin(globals);
  if (!admin.ok()) return -1;
  absl::StatusOr<std::string> text = (*admin)->StatusJson();
  if (!text.ok()) return -1;
  const nlohmann::json document = nlohmann::json::parse(*text, nullptr, false);
  if (!document.is_object() || !document.contains("process")) return -1;
  const nlohmann::json& process = document["process"];
  if (!process.is_object() || !process.contains("cpu_seconds")) return -1;
  return process["cpu_seconds"].is_number() ? process["cpu_seconds"].get<double>() : -1;
}

}  // namespace crumb::cli
