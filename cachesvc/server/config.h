// The daemon's configuration: defaults, then the YAML file, then CRUMB_SECTION__KEY from the
// environment, then --set. PROMISE: what is not understood stops the start; nothing is ignored and
// nothing falls back to a default in silence. Immutable after Load; any thread.
#ifndef CRUMB_CACHESVC_SERVER_CONFIG_H_
#define CRUMB_CACHESVC_SERVER_CONFIG_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/server/config_sections.h"
#include "cachesvc/server/machine.h"

namespace crumb {

inline constexpr char kOff[] = "off";                 // listen.*: this door stays shut
inline constexpr char kDataSocketSuffix[] = ".data";  // behind listen.socket
inline constexpr char kNvmeFileName[] = "pages.log";

struct Config {
  std::string node;
  std::string data_dir;
  ListenConfig listen;
  PoolConfig pool;
  NvmeConfig nvme;
  CodecConfig codec;
  QualityBounds quality;
  GpuConfig gpu;
  UcxConfig ucx;
  std::string cluster_mode;
  LimitsConfig limits;
  uint64_t shutdown_grace_us = 0;
  bool shutdown_save = true;
  LogConfig log;
  std::vector<std::string> warnings;  // said once at start
};

struct ConfigInputs {
  std::string file_name;  // for messages; empty = no file
  std::string file_text;
  std::vector<std::pair<std::string, std::string>> environment;  // name, value
  std::vector<std::string> sets;                                 // "key=value" of --set
};

// Everything of `inputs` over the defaults, checked against the machine. The error is one line:
// where it was said, the key, the value and the remedy.
absl::StatusOr<Config> LoadConfig(const ConfigInputs& inputs, const Machine& machine);

// Reads `file` (at most 1 MiB; empty name = none) and this process' environment.
absl::StatusOr<ConfigInputs> ReadConfigInputs(const std::string& file,
                                              std::vector<std::string> sets);

// The effective configuration as YAML that LoadConfig accepts and reads back to the same values.
std::string PrintConfig(const Config& config);

// Host and port of "HOST:PORT" / "[V6]:PORT"; INVALID_ARGUMENT says what is wrong.
struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
  bool loopback = false;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);
// "127.0.0.1:7411", "[::1]:7411".
std::string FormatHostPort(const HostPort& place);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_CONFIG_H_
