// crumbctl doctor: what a host must have for crumbd to run well. Each check looks, says ok, warn or
// fail, and names the remedy. Checks change nothing but a temporary file in the data directory.
// One thread.
#ifndef CRUMB_CLIENT_CLI_DOCTOR_H_
#define CRUMB_CLIENT_CLI_DOCTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace crumb::cli {

enum class Level : uint8_t { kOk, kWarn, kFail };
const char* ToString(Level level);

struct Check {
  std::string name;
  Level level = Level::kOk;
  std::string text{};    // what was found
  std::string remedy{};  // what to do about it; empty when ok
  std::string hint{};    // a command that does it, for --fix-hints
};

// Where the host is read from; tests point it at files of their own.
struct HostPaths {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

// doctor_host.cc
Check CheckKernel(absl::string_view release);
Check CheckHugepages(const HostPaths& paths);
Check CheckClock(const HostPaths& paths);
Check CheckCgroup(const HostPaths& paths);
Check CheckMemlock(uint64_t soft_limit_bytes);
Check CheckOpenFiles(uint64_t soft_limit);
// doctor_disk.cc
Check CheckUring();
std::vector<Check> CheckDataDir(const std::string& directory);
// doctor_net.cc
Check CheckUcx();
Check CheckShm(const std::string& directory);
Check CheckMappedMemory();
// "127.0.0.1:7411 (listen.grpc)": free, or held by a daemon that answers (`daemon_answers`).
Check CheckPort(uint16_t port, absl::string_view key, absl::string_view daemon_version);
// doctor_cuda.cc
Check CheckCuda(const char* library);
// What a daemon's status document says of its GPU, beside what this host has (`cuda`).
Check CheckDaemonGpu(const std::string& status_json, const Check& cuda);

}  // namespace crumb::cli

#endif  // CRUMB_CLIENT_CLI_DOCTOR_H_
