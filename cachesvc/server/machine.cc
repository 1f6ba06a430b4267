// Machine limits from sysconf, the affinity mask and cgroup v2 (v1 for memory). Any thread.
#include "cachesvc/server/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cachesvc/server/gpus.h"
#include "gpu/codec/codec_backend.h"

namespace crumb {
namespace {

constexpr size_t kSmallFileBytesMax = 64 * 1024;
constexpr int kPathDepthMax = 256;

// This process' group below /sys/fs/cgroup, or empty.
std::string CgroupPath() {
  for (absl::string_view line : absl::StrSplit(ReadSmallFile("/proc/self/cgroup"), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return std::string(line);
  }
  return {};
}

std::string Parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  return path.substr(0, slash);
}

uint64_t CgroupMemory(const std::string& group) {
  uint64_t limit = std::numeric_limits<uint64_t>::max();
  std::string at = group;
  for (int depth = 0; depth < kPathDepthMax; ++depth) {
    limit = std::min(
        limit, ParseCgroupLimit(ReadSmallFile(absl::StrCat("/sys/fs/cgroup", at, "/memory.max"))));
    if (at.empty()) break;
    at = Parent(at);
  }
  return std::min(limit,
                  ParseCgroupLimit(ReadSmallFile("/sys/fs/cgroup/memory/memory.limit_in_bytes")));
}

uint32_t CgroupCores(const std::string& group) {
  uint32_t limit = std::numeric_limits<uint32_t>::max();
  std::string at = group;
  for (int depth = 0; depth < kPathDepthMax; ++depth) {
    limit = std::min(
        limit, ParseCgroupCores(ReadSmallFile(absl::StrCat("/sys/fs/cgroup", at, "/cpu.max"))));
    if (at.empty()) break;
    at = Parent(at);
  }
  return limit;
}

// A block device is a volume of its own; absent for anything else.
std::optional<Volume> BlockDeviceVolume(const struct stat& info) {
  if (!S_ISBLK(info.st_mode)) return std::nullopt;
  constexpr uint64_t kSectorBytes = 512;
  const std::string text = ReadSmallFile(
      absl::StrCat("/sys/dev/block/", major(info.st_rdev), ":", minor(info.st_rdev), "/size"));
  uint64_t sectors = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &sectors)) return std::nullopt;
  const uint64_t bytes = sectors * kSectorBytes;
  return Volume{.total_bytes = bytes, .available_bytes = bytes, .id = info.st_rdev};
}

absl::StatusOr<Volume> VolumeOf(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) == 0) {
    if (const std::optional<Volume> device = BlockDeviceVolume(facts)) return *device;
  }
  std::string at = path;
  for (int depth = 0; depth < kPathDepthMax; ++depth) {
    struct statvfs info {};
    const char* place = at.empty() ? "/" : at.c_str();
    if (statvfs(place, &info) == 0 && stat(place, &facts) == 0) {
      const uint64_t unit = info.f_frsize;
      return Volume{.total_bytes = info.f_blocks * unit,
                    .available_bytes = info.f_bavail * unit,
                    .id = facts.st_dev};
    }
    if (errno != ENOENT && errno != ENOTDIR) break;
    if (at.empty()) break;
    at = Parent(at);
  }
  return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
}

uint64_t LengthOf(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  return static_cast<uint64_t>(info.st_size);
}

PathKind KindOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? PathKind::kAbsent : PathKind::kUnreadable;
  }
  if (S_ISDIR(info.st_mode)) return PathKind::kDirectory;
  if (S_ISREG(info.st_mode)) return PathKind::kFile;
  return S_ISBLK(info.st_mode) ? PathKind::kBlockDevice : PathKind::kOther;
}

uint64_t AllocatedBytes(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace

std::string ReadSmallFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string out(kSmallFileBytesMax, '\0');
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t got = read(fd, out.data() + have, out.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<size_t>(got);
  }
  close(fd);
  out.resize(have);
  return out;
}

uint64_t ParseCgroupLimit(absl::string_view text) {
  uint64_t value = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &value) && value > 0) return value;
  return std::numeric_limits<uint64_t>::max();
}

uint32_t ParseCgroupCores(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  uint64_t quota = 0;
  uint64_t period = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) ||
      !absl::SimpleAtoi(words[1], &period) || quota == 0 || period == 0) {
    return std::numeric_limits<uint32_t>::max();
  }
  const uint64_t cores = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<uint32_t>(std::min<uint64_t>(cores, std::numeric_limits<uint32_t>::max()));
}

Machine DetectMachine() {
  Machine machine;
  const uint64_t pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  const uint64_t page = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  const std::string group = CgroupPath();
  machine.memory_bytes = std::min(pages * page, CgroupMemory(group));
  cpu_set_t mask;
  CPU_ZERO(&mask);
  uint32_t cores = 1;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&mask)));
  }
  machine.cores = std::min(cores, CgroupCores(group));
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) machine.host_name = name.data();
  if (machine.host_name.empty()) machine.host_name = "localhost";
  machine.root = geteuid() == 0;
  machine.built_with_cuda = BuiltWithCuda();
  machine.codec_backends.clear();
  for (const CodecBackend backend : SupportedCodecBackends()) {
    machine.codec_backends.emplace_back(ToString(backend));
  }
  machine.volume = VolumeOf;
  machine.file_bytes = AllocatedBytes;
  machine.file_length = LengthOf;
  machine.path_kind = KindOf;
  return machine;
}

}  // namespace crumb
