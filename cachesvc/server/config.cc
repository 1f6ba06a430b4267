// Merges the sources of the configuration and checks the whole against the machine. The only file
// of the daemon that reads the environment. Any thread; no state.
#include "cachesvc/server/config.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cachesvc/base/page_header.h"
#include "cachesvc/server/config_file.h"
#include "cachesvc/server/config_schema.h"
#include "cachesvc/server/nvme_space.h"
#include "cachesvc/server/windows.h"
#include "storage/device/stripe_set.h"

namespace crumb {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kDefaultPoolBytes = 1024 * kMiB;
constexpr uint64_t kDefaultNvmeBytes = 4096 * kMiB;
constexpr uint64_t kDefaultNvmeBytesMin = 32 * kMiB;
constexpr uint64_t kSegmentBytesDefaultMax = 64 * kMiB;
constexpr uint64_t kOverheadBytes = 64 * kMiB;  // code, index, threads
constexpr uint64_t kSegmentsMin = 4;
constexpr uint64_t kThreadsDefaultMax = 16;
constexpr char kHowHbm[] =
    "\" is neither auto nor a size: write auto, a whole number with MiB, GiB or TiB, a percentage "
    "of the GPU's memory such as 20%, or 0 for no HBM tier";
constexpr size_t kSocketPathBytesMax = 107;  // sockaddr_un, without the final zero

struct Said {
  std::string text;
  std::string where;  // "FILE:3", "CRUMB_NODE in the environment", "--set"
};
using Settings = std::map<std::string, Said>;

absl::Status KeyError(const std::string& where, absl::string_view key, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, where.empty() ? "" : ": ", key, ": ", what));
}

absl::Status UnknownKey(const std::string& where, const std::string& key) {
  if (key.find('.') == std::string::npos) {
    for (const KeySpec& known : ConfigKeys()) {
      if (absl::StartsWith(known.name, key + ".")) {
        return KeyError(where, key,
                        absl::StrCat("is a section: put its keys below it, e.g. ", known.name));
      }
    }
  }
  const std::string nearest = NearestKey(key);
  return KeyError(where, key,
                  nearest.empty() ? "unknown key: docs/configuration.md has every key"
                                  : absl::StrCat("unknown key: did you mean ", nearest, "?"));
}

std::string EnvironmentName(absl::string_view key) {
  return absl::StrCat("CRUMB_", absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{".", "__"}})));
}

absl::Status AddFile(const ConfigInputs& inputs, Settings* settings) {
  if (inputs.file_name.empty()) return absl::OkStatus();
  CRUMB_ASSIGN(const std::vector<ConfigEntry> entries,
               ParseConfigFile(inputs.file_name, inputs.file_text));
  for (const ConfigEntry& entry : entries) {
    const std::string where = absl::StrCat(inputs.file_name, ":", entry.line);
    const KeySpec* key = FindKey(entry.key);
    if (key == nullptr) return UnknownKey(where, entry.key);
    if (entry.list && key->list == nullptr) {
      return KeyError(where, entry.key, "takes one value, not a list");
    }
    (*settings)[entry.key] = {entry.value, where};
  }
  return absl::OkStatus();
}

absl::Status AddEnvironment(const ConfigInputs& inputs, Settings* settings) {
  for (const auto& [name, value] : inputs.environment) {
    if (!absl::StartsWith(name, "CRUMB_")) continue;
    const std::string where = absl::StrCat(name, " in the environment");
    for (const KeySpec& known : ConfigKeys()) {
      const std::string right = EnvironmentName(known.name);
      if (name != right && name == absl::StrReplaceAll(right, {{"__", "_"}})) {
        return KeyError(where, known.name, absl::StrCat("write ", right, " (two underscores)"));
      }
    }
    const std::string key =
        absl::AsciiStrToLower(absl::StrReplaceAll(name.substr(6), {{"__", "."}}));
    const bool section = key.find('.') != std::string::npos;
    if (FindKey(key) != nullptr) {
      (*settings)[key] = {value, where};
    } else if (section) {
      return UnknownKey(where, key);
    }  // else: CRUMB_SERVER and the like, meant for other programs
  }
  return absl::OkStatus();
}

absl::Status AddSets(const ConfigInputs& inputs, Settings* settings) {
  for (const std::string& set : inputs.sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", set.substr(0, 80), ": write --set KEY=VALUE"));
    }
    const std::string key = set.substr(0, equals);
    if (FindKey(key) == nullptr) return UnknownKey("--set", key);
    (*settings)[key] = {set.substr(equals + 1), "--set"};
  }
  return absl::OkStatus();
}

std::string Variable(const ConfigInputs& inputs, absl::string_view name) {
  for (const auto& [known, value] : inputs.environment) {
    if (known == name) return value;
  }
  return {};
}

absl::StatusOr<std::string> DefaultDataDir(const ConfigInputs& inputs, const Machine& machine) {
  if (machine.root) return "/var/lib/crumb";
  const std::string state = Variable(inputs, "XDG_STATE_HOME");
  if (state.starts_with('/')) return absl::StrCat(state, "/crumb");
  const std::string home = Variable(inputs, "HOME");
  if (home.starts_with('/')) return absl::StrCat(home, "/.local/state/crumb");
  return absl::InvalidArgumentError("no default without HOME: set it");
}

absl::StatusOr<NvmeSpace> NvmeSpaceOf(const Config& config, const Machine& machine) {
  CRUMB_ASSIGN(const std::vector<NvmeShare> shares, NvmeShares(config.nvme.paths, machine));
  return SumOfEqualShares(shares);
}

// What `nvme.bytes` gives to pages: several members have labels.
uint64_t NvmeDataBytes(const NvmeConfig& nvme) {
  return nvme.paths.size() > 1 ? StripeDataBytes(nvme.bytes, nvme.paths.size()) : nvme.bytes;
}

absl::StatusOr<HbmWanted> ParseHbm(const std::string& text) {
  HbmWanted wanted;
  if (text == "auto") return wanted;
  const bool percent = absl::EndsWith(text, "%");
  const absl::StatusOr<uint64_t> value = ParseSize(text, 100);
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 80), kHowHbm));
  }
  wanted.wish = percent ? HbmWish::kPercent : HbmWish::kBytes;
  wanted.value = *value;
  if (*value == 0) return HbmWanted{.wish = HbmWish::kBytes, .value = 0};
  if (!percent && (*value < kHbmBytesMin || *value > 64 * 1024 * 1024 * kMiB)) {
    return absl::InvalidArgumentError(
        absl::StrCat(FormatSize(*value), " is out of range: it must be ", FormatSize(kHbmBytesMin),
                     " to 64TiB, or 0 for no HBM tier"));
  }
  return wanted;
}

// The default of a key that depends on the machine or on keys before it.
absl::StatusOr<std::string> ComputedDefault(absl::string_view key, const ConfigInputs& inputs,
                                            const Machine& machine, Config* config) {
  if (key == "node") return machine.host_name;
  if (key == "data_dir") return DefaultDataDir(inputs, machine);
  if (key == "listen.socket") {
    const std::string runtime = Variable(inputs, "XDG_RUNTIME_DIR");
    return absl::StrCat(runtime.starts_with('/') ? runtime : "/run", "/crumb/crumbd.sock");
  }
  if (key == "pool.dram_bytes") {
    const uint64_t half = machine.memory_bytes / 2 / kMiB * kMiB;
    return FormatSize(std::max(8 * kMiB, std::min(kDefaultPoolBytes, half)));
  }
  if (key == "nvme.path") return absl::StrCat(config->data_dir, "/nvme");
  if (key == "codec.threads") {
    const uint64_t spare = machine.cores > 1 ? machine.cores - 1 : 1;
    return absl::StrCat(std::min(kThreadsDefaultMax, spare));
  }
  if (key == "nvme.bytes") {
    CRUMB_ASSIGN(const NvmeSpace space, NvmeSpaceOf(*config, machine));
    const uint64_t bytes = std::min(kDefaultNvmeBytes, space.available_bytes / 2) / kMiB * kMiB;
    if (bytes >= kDefaultNvmeBytesMin) return FormatSize(bytes);
    config->warnings.push_back(
        absl::StrCat("nvme.bytes: no NVMe tier: ", space.tightest, " has only ",
                     FormatSize(space.available_bytes / config->nvme.paths.size()),
                     " free; set nvme.bytes, or nvme.path to a larger volume"));
    return std::string("0");
  }
  if (key == "nvme.segment_bytes") {
    const uint64_t wanted =
        std::bit_floor(std::max<uint64_t>(NvmeDataBytes(config->nvme) / 16, kMiB));
    return FormatSize(std::min(kSegmentBytesDefaultMax, wanted));
  }
  return std::string();
}

class Checker {
 public:
  Checker(const Settings& settings, const Machine& machine, Config* config)
      : settings_(settings), machine_(machine), config_(*config) {}

  absl::Status Run() {
    CRUMB_TRY(CheckListen());
    CRUMB_TRY(CheckMemory());
    CRUMB_TRY(CheckGpu());
    CRUMB_TRY(CheckNvme());
    if (const auto windows = ParseWindows(config_.codec.windows); !windows.ok()) {
      return Error("codec.windows", windows.status().message());
    }
    CRUMB_TRY(CheckPlaces());
    CRUMB_TRY(CheckCodec());
    return CheckLimits();
  }

 private:
  absl::Status Error(absl::string_view key, absl::string_view what) const {
    const auto said = settings_.find(std::string(key));
    return KeyError(said == settings_.end() ? "" : said->second.where, key, what);
  }
  bool WasSaid(const char* key) const { return settings_.count(key) != 0; }

  absl::Status CheckListen() {
    const ListenConfig& listen = config_.listen;
    for (const auto& [key, text] :
         {std::pair{"listen.grpc", &listen.grpc}, std::pair{"listen.http", &listen.http}}) {
      if (*text == kOff) continue;
      CRUMB_ASSIGN(const HostPort place, ParseHostPort(*text));
      if (place.loopback) continue;
      if (!listen.insecure) {
        return Error(key, absl::StrCat("\"", *text,
                                       "\" is not loopback, and there is no authentication: use "
                                       "127.0.0.1, or accept that with listen.insecure: true"));
      }
      config_.warnings.push_back(
          absl::StrCat(key, ": ", *text,
                       " is open to the network WITHOUT AUTHENTICATION: anyone "
                       "who reaches it can read, write and delete cached pages"));
    }
    if (listen.grpc == listen.http && listen.grpc != kOff && !absl::EndsWith(listen.grpc, ":0")) {
      return Error("listen.http", "is the same as listen.grpc: give it another port");
    }
    if (listen.grpc == kOff && listen.socket == kOff) {
      return Error("listen.socket",
                   "is off and listen.grpc is too: nobody could reach the daemon; "
                   "turn one of them on");
    }
    if (listen.socket.size() > kSocketPathBytesMax) {
      return Error("listen.socket", absl::StrCat("is longer than ", kSocketPathBytesMax,
                                                 " bytes, the system's limit: use a shorter path"));
    }
    const std::string& devices = config_.ucx.net_devices;
    if (config_.ucx.enabled && !devices.empty() && devices != "lo") {
      if (!listen.insecure) {
        return Error("ucx.net_devices",
                     "anything but lo is open to the network without "
                     "authentication: use lo, or accept that with "
                     "listen.insecure: true");
      }
      config_.warnings.push_back(absl::StrCat("ucx.net_devices: ", devices,
                                              " is open to the network WITHOUT AUTHENTICATION"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckMemory() const {
    const uint64_t have = machine_.memory_bytes;
    const auto over = [&](const char* key, uint64_t bytes) {
      return Error(key, absl::StrCat(FormatSize(bytes), " is over the ", FormatSize(have),
                                     " of memory that this machine or control group has: use a "
                                     "smaller size, e.g. 25%"));
    };
    if (config_.pool.dram_bytes > have) return over("pool.dram_bytes", config_.pool.dram_bytes);
    if (config_.limits.staging_bytes > have) {
      return over("limits.staging_bytes", config_.limits.staging_bytes);
    }
    if (config_.limits.grpc_bytes > have)
      return over("limits.grpc_bytes", config_.limits.grpc_bytes);
    const uint64_t sum = config_.pool.dram_bytes + config_.limits.staging_bytes +
                         config_.limits.grpc_bytes + kOverheadBytes;
    if (sum > have) {
      return Error("pool.dram_bytes",
                   absl::StrCat("with limits.staging_bytes, limits.grpc_bytes and ",
                                FormatSize(kOverheadBytes), " of overhead the daemon may need ",
                                FormatSize(sum), ", but there are ", FormatSize(have),
                                " of memory: use smaller sizes"));
    }
    return absl::OkStatus();
  }

  // Whether there is a GPU, and how much of it is free, is found out by the start.
  absl::Status CheckGpu() {
    absl::StatusOr<HbmWanted> wanted = ParseHbm(config_.pool.hbm_bytes);
    if (!wanted.ok()) return Error("pool.hbm_bytes", wanted.status().message());
    config_.pool.hbm = *wanted;
    if (wanted->wish == HbmWish::kAuto || wanted->value == 0) return absl::OkStatus();
    const std::string& text = config_.pool.hbm_bytes;
    if (!machine_.built_with_cuda) {
      return Error("pool.hbm_bytes",
                   absl::StrCat(text,
                                ": this build has no CUDA: configure it with -DCRUMB_CUDA=ON "
                                "on a machine that has nvcc, or set auto"));
    }
    if (config_.gpu.enabled) return absl::OkStatus();
    return Error(
        "pool.hbm_bytes",
        absl::StrCat(text, " needs the GPU, and gpu.enabled is false: set one of the two"));
  }

  absl::Status CheckNvme() const {
    const NvmeConfig& nvme = config_.nvme;
    if (!std::has_single_bit(nvme.segment_bytes)) {
      return Error("nvme.segment_bytes", "must be a power of two: 1MiB, 2MiB, 4MiB ... 256MiB");
    }
    if (nvme.bytes == 0) return absl::OkStatus();
    for (const std::string& path : nvme.paths) CRUMB_TRY(CheckNvmePath(path));
    if (NvmeDataBytes(nvme) < kSegmentsMin * nvme.segment_bytes) {
      const uint64_t members = nvme.paths.size();
      const uint64_t over = members > 1 ? members * (kStripeLabelBytes + kStripeUnitBytes) : 0;
      return Error("nvme.bytes",
                   absl::StrCat(FormatSize(nvme.bytes), members > 1 ? " over " : "",
                                members > 1 ? absl::StrCat(members, " members") : std::string(),
                                " is less than ", kSegmentsMin, " segments of ",
                                FormatSize(nvme.segment_bytes), ": use at least ",
                                FormatSize(kSegmentsMin * nvme.segment_bytes + over),
                                ", or a smaller nvme.segment_bytes, or 0 for no NVMe tier"));
    }
    return CheckNvmeRoom();
  }

  absl::Status CheckNvmePath(const std::string& path) const {
    const PathKind kind = machine_.path_kind(path);
    if (kind == PathKind::kFile || kind == PathKind::kOther) {
      return Error("nvme.path", absl::StrCat(path,
                                             " is neither a directory nor a block "
                                             "device: name a directory"));
    }
    if (kind == PathKind::kUnreadable) {
      return Error("nvme.path",
                   absl::StrCat(path, " cannot be reached: check its permissions and its parents"));
    }
    return absl::OkStatus();
  }

  // Block devices have their say when they are opened: of several, the smallest counts.
  absl::Status CheckNvmeRoom() const {
    const NvmeConfig& nvme = config_.nvme;
    const auto shares = NvmeShares(nvme.paths, machine_);
    if (!shares.ok()) return Error("nvme.path", shares.status().message());
    for (const NvmeShare& share : *shares) {
      const uint64_t wanted = nvme.bytes / nvme.paths.size();
      if (share.block_device || wanted <= share.available_bytes) continue;
      // WHY not refused where the file is there: its pages are worth more than its full length.
      if (wanted / kPageAlignment * kPageAlignment <= share.file_length) {
        config_.warnings.push_back(absl::StrCat(
            "nvme.bytes: the volume of ", share.path, " has room for ",
            FormatSize(share.available_bytes), " of ", FormatSize(wanted),
            ": pages beyond that are not stored until it has more: make room, or lower it"));
        continue;
      }
      const std::string part = nvme.paths.size() == 1
                                   ? ""
                                   : absl::StrCat(" (one of ", nvme.paths.size(), " parts of ",
                                                  FormatSize(nvme.bytes), ")");
      return Error("nvme.bytes",
                   absl::StrCat(FormatSize(wanted), part, " is over the ",
                                FormatSize(share.available_bytes), " that the volume of ",
                                share.path, " has free: use a smaller size or another nvme.path"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlaces() const {
    const PathKind data = machine_.path_kind(config_.data_dir);
    if (data == PathKind::kUnreadable) {
      return Error("data_dir", absl::StrCat(config_.data_dir,
                                            " cannot be reached: check its "
                                            "permissions and its parents"));
    }
    if (data != PathKind::kAbsent && data != PathKind::kDirectory) {
      return Error("data_dir",
                   absl::StrCat(config_.data_dir, " is not a directory: name a directory"));
    }
    if (WasSaid("data_dir")) CRUMB_TRY(CheckParent("data_dir", config_.data_dir));
    if (config_.nvme.bytes != 0 && WasSaid("nvme.path")) {
      for (const std::string& path : config_.nvme.paths) {
        CRUMB_TRY(CheckParent("nvme.path", path));
      }
    }
    return absl::OkStatus();
  }

  // WHY: a missing parent is a misspelt path or a volume that is not mounted, and filling the root
  // volume instead would be worse than not starting.
  absl::Status CheckParent(const char* key, const std::string& path) const {
    if (machine_.path_kind(path) != PathKind::kAbsent) return absl::OkStatus();
    const std::string parent = path.substr(0, std::max<size_t>(1, path.find_last_of('/')));
    if (parent == config_.data_dir || machine_.path_kind(parent) == PathKind::kDirectory) {
      return absl::OkStatus();
    }
    return Error(key, absl::StrCat(parent, " does not exist: create it or mount its volume"));
  }

  absl::Status CheckCodec() const {
    const std::vector<std::string>& runs = machine_.codec_backends;
    const std::string& wanted = config_.codec.backend;
    if (wanted == "auto" || std::find(runs.begin(), runs.end(), wanted) != runs.end()) {
      return absl::OkStatus();
    }
    return Error("codec.backend",
                 absl::StrCat(wanted,
                              " is not what this processor or its operating system runs: "
                              "use auto, or one of ",
                              absl::StrJoin(runs, ", ")));
  }

  absl::Status CheckLimits() const {
    const LimitsConfig& limits = config_.limits;
    if (limits.requests_per_peer > limits.requests) {
      return Error("limits.requests_per_peer", "is over limits.requests: lower it");
    }
    if (limits.deadline_us > limits.deadline_us_max) {
      return Error("limits.deadline", "is over limits.deadline_max: lower it");
    }
    return absl::OkStatus();
  }

  const Settings& settings_;
  const Machine& machine_;
  Config& config_;
};

}  // namespace

absl::StatusOr<Config> LoadConfig(const ConfigInputs& inputs, const Machine& machine) {
  Settings settings;
  CRUMB_TRY(AddFile(inputs, &settings));
  CRUMB_TRY(AddEnvironment(inputs, &settings));
  CRUMB_TRY(AddSets(inputs, &settings));
  Config config;
  for (const KeySpec& key : ConfigKeys()) {
    const auto said = settings.find(key.name);
    std::string text = key.fallback;
    if (said != settings.end()) {
      text = said->second.text;
    } else if (text.empty()) {
      absl::StatusOr<std::string> computed = ComputedDefault(key.name, inputs, machine, &config);
      if (!computed.ok()) return KeyError("", key.name, computed.status().message());
      text = *std::move(computed);
    }
    uint64_t percent_of = machine.memory_bytes;
    if (absl::StartsWith(key.name, "nvme.") && key.kind == KeyKind::kSize) {
      const absl::StatusOr<NvmeSpace> space = NvmeSpaceOf(config, machine);
      if (!space.ok()) return KeyError("", "nvme.path", space.status().message());
      percent_of = space->total_bytes;
    }
    const absl::Status assigned = AssignKey(key, text, percent_of, config);
    if (!assigned.ok()) {
      return KeyError(said == settings.end() ? "" : said->second.where, key.name,
                      assigned.message());
    }
  }
  CRUMB_TRY(Checker(settings, machine, &config).Run());
  return config;
}

absl::StatusOr<ConfigInputs> ReadConfigInputs(const std::string& file,
                                              std::vector<std::string> sets) {
  ConfigInputs inputs;
  inputs.sets = std::move(sets);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    inputs.environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  if (file.empty()) return inputs;
  inputs.file_name = file;
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int error = fd < 0 ? errno : EINVAL;
    if (fd >= 0) close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("--config ", file, ": ", fd < 0 ? std::strerror(error) : "not a regular file",
                     ": name a readable YAML file"));
  }
  inputs.file_text.resize(kConfigFileBytesMax + 1);
  size_t have = 0;
  while (have < inputs.file_text.size()) {
    const ssize_t got = read(fd, inputs.file_text.data() + have, inputs.file_text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<size_t>(got);
  }
  close(fd);
  inputs.file_text.resize(have);
  return inputs;
}

std::string PrintConfig(const Config& config) {
  std::string out;
  std::string section;
  for (const KeySpec& key : ConfigKeys()) {
    const absl::string_view name = key.name;
    const size_t dot = name.find('.');
    const std::string own(dot == absl::string_view::npos ? "" : name.substr(0, dot));
    if (own != section && !own.empty()) absl::StrAppend(&out, own, ":\n");
    section = own;
    absl::StrAppend(&out, own.empty() ? "" : "  ",
                    dot == absl::string_view::npos ? name : name.substr(dot + 1), ": ",
                    PrintKey(key, config), "\n");
  }
  return out;
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 80), "\" ", what));
  };
  HostPort place;
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || colon + 1 >= text.size() ||
      text.find_first_not_of("0123456789", colon + 1) != std::string::npos ||
      text.size() - colon > 6) {
    return error("is no address: write HOST:PORT, e.g. 127.0.0.1:7411, or off");
  }
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return error("has a port out of range: 0 (any free one) to 65535");
  }
  place.port = static_cast<uint16_t>(port);
  place.host = text.substr(0, colon);
  if (place.host == "localhost") place.host = "127.0.0.1";
  std::array<uint8_t, 16> address{};
  if (inet_pton(AF_INET, place.host.c_str(), address.data()) == 1) {
    place.loopback = address[0] == 127;
    return place;
  }
  if (place.host.size() > 2 && place.host.front() == '[' && place.host.back() == ']') {
    place.host = place.host.substr(1, place.host.size() - 2);
    if (inet_pton(AF_INET6, place.host.c_str(), address.data()) == 1) {
      std::array<uint8_t, 16> one{};
      one[15] = 1;
      place.loopback = address == one;
      return place;
    }
  }
  return error("names no IP address: write digits, localhost, or [IPv6]");
}

std::string FormatHostPort(const HostPort& place) {
  const bool v6 = place.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", place.host, v6 ? "]:" : ":", place.port);
}

}  // namespace crumb
