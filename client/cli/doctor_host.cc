// Checks of kernel, memory, clock and limits. Reads small files of /proc and /sys; what is not
// there is said, never guessed.
#include <sys/timex.h>
#include <time.h>

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"

namespace crumb::cli {
namespace {

constexpr size_t kSmallFileMax = 64 * 1024;
constexpr uint64_t kMemlockWanted = 64ull << 20;
constexpr uint64_t kOpenFilesWanted = 4096;
constexpr uint64_t kUnlimited = ~0ull;

// Empty when it cannot be read.
std::string ReadSmall(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kSmallFileMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::string FirstLine(const std::string& path) {
  const std::string text = ReadSmall(path);
  return text.substr(0, text.find('\n'));
}

// Value of "NAME:   123 kB" in /proc/meminfo, without its unit; false if absent.
bool MemInfo(const std::string& text, absl::string_view name, uint64_t* value) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, absl::StrCat(name, ":"))) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    return !words.empty() && absl::SimpleAtoi(words[0], value);
  }
  return false;
}

// The cgroup v2 directory of this process, or that of the whole machine.
std::string CgroupDir(const HostPaths& paths) {
  for (absl::string_view line : absl::StrSplit(ReadSmall(paths.proc + "/self/cgroup"), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) {
      return absl::StrCat(paths.sys, "/fs/cgroup", line == "/" ? "" : line);
    }
  }
  return absl::StrCat(paths.sys, "/fs/cgroup");
}

}  // namespace

const char* ToString(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "fail";
  }
  return "unknown";
}

Check CheckKernel(absl::string_view release) {
  Check check{.name = "kernel", .text = absl::StrCat("Linux ", release)};
  const std::vector<absl::string_view> parts =
      absl::StrSplit(release, absl::ByAnyChar(".-+ "), absl::SkipEmpty());
  uint32_t major = 0;
  uint32_t minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor)) {
    check.level = Level::kWarn;
    check.remedy = "the version is not understood; crumbd wants Linux 5.10 or newer";
  } else if (major < 5 || (major == 5 && minor < 4)) {
    check.level = Level::kFail;
    check.remedy = "crumbd needs Linux 5.4; 5.10 or newer for io_uring at full speed";
    check.hint = "apt install --install-recommends linux-image-amd64 && reboot";
  } else if (major == 5 && minor < 10) {
    check.level = Level::kWarn;
    check.remedy = "io_uring before 5.10 lacks what the NVMe tier likes; upgrade the kernel";
    check.hint = "apt install --install-recommends linux-image-amd64 && reboot";
  }
  return check;
}

Check CheckHugepages(const HostPaths& paths) {
  Check check{.name = "hugepages"};
  const std::string info = ReadSmall(paths.proc + "/meminfo");
  uint64_t total = 0;
  uint64_t size_kib = 0;
  if (!MemInfo(info, "HugePages_Total", &total) || !MemInfo(info, "Hugepagesize", &size_kib)) {
    check.level = Level::kWarn;
    check.text = "this kernel has no huge pages";
    check.remedy = "leave pool.hugepages off";
    return check;
  }
  const std::string transparent = FirstLine(paths.sys + "/kernel/mm/transparent_hugepage/enabled");
  check.text =
      absl::StrCat(total, " of ", size_kib,
                   " KiB reserved; transparent: ", transparent.empty() ? "unknown" : transparent);
  if (total == 0 && !absl::StrContains(transparent, "[always]") &&
      !absl::StrContains(transparent, "[madvise]")) {
    check.level = Level::kWarn;
    check.remedy = "the pool runs on small pages: more TLB misses; allow transparent huge pages";
    check.hint = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return check;
}

Check CheckClock(const HostPaths& paths) {
  Check check{.name = "clock"};
  const std::string base = paths.sys + "/devices/system/clocksource/clocksource0/";
  const std::string source = FirstLine(base + "current_clocksource");
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  timex state{};
  const bool synchronised = ::adjtimex(&state) != TIME_ERROR;
  check.text = absl::StrCat("source ", source.empty() ? "unknown" : source,
                            synchronised ? ", synchronised" : ", not synchronised");
  constexpr time_t kStartOf2024 = 1704067200;
  if (now.tv_sec < kStartOf2024) {
    check.level = Level::kFail;
    check.remedy = "the date is before 2024: TTLs, certificates and budgets go wrong; set it";
    check.hint = "timedatectl set-ntp true";
  } else if (source == "hpet" || source == "acpi_pm" || source == "jiffies") {
    check.level = Level::kWarn;
    check.remedy = "reading this clock is slow; prefer tsc where the machine has it";
    check.hint = "echo tsc > " + base + "current_clocksource";
  } else if (!synchronised) {
    check.level = Level::kWarn;
    check.remedy = "logs and certificates want a synchronised clock; run an NTP client";
    check.hint = "timedatectl set-ntp true";
  }
  return check;
}

Check CheckCgroup(const HostPaths& paths) {
  Check check{.name = "cgroup"};
  const std::string dir = CgroupDir(paths);
  const std::string memory = FirstLine(dir + "/memory.max");
  const std::string cpu = FirstLine(dir + "/cpu.max");
  uint64_t bytes = 0;
  const bool limited = absl::SimpleAtoi(memory, &bytes);
  const std::vector<std::string> quota = absl::StrSplit(cpu, ' ');
  double used = 0;
  double period = 0;
  const bool cpu_limited = quota.size() == 2 && absl::SimpleAtod(quota[0], &used) &&
                           absl::SimpleAtod(quota[1], &period) && period > 0;
  check.text = absl::StrCat(
      "memory ", limited ? HumanBytes(static_cast<double>(bytes)) : "unlimited", ", CPU ",
      cpu_limited ? absl::StrFormat("%.2f cores", used / period) : "unlimited");
  constexpr uint64_t kMemoryWanted = 256ull << 20;
  if (limited && bytes < kMemoryWanted) {
    check.level = Level::kFail;
    check.remedy =
        "crumbd wants 64 MiB besides its pool: raise the memory limit to 256 MiB or more";
    check.hint = "systemctl set-property crumbd.service MemoryMax=4G";
  } else if (cpu_limited && used / period < 1.0) {
    check.level = Level::kWarn;
    check.remedy = "the shard thread wants a core of its own: raise the CPU limit";
    check.hint = "systemctl set-property crumbd.service CPUQuota=200%";
  }
  return check;
}

Check CheckMemlock(uint64_t soft_limit_bytes) {
  Check check{.name = "memlock"};
  check.text = soft_limit_bytes == kUnlimited ? "unlimited"
                                              : HumanBytes(static_cast<double>(soft_limit_bytes));
  if (soft_limit_bytes < kMemlockWanted) {
    check.level = Level::kWarn;
    check.remedy =
        "io_uring cannot register the staging area and RDMA cannot pin: both fall back; raise it";
    check.hint =
        "systemctl edit crumbd  # [Service] LimitMEMLOCK=infinity; in a shell: ulimit -l "
        "unlimited";
  }
  return check;
}

Check CheckOpenFiles(uint64_t soft_limit) {
  Check check{.name = "open files"};
  check.text = soft_limit == kUnlimited ? "unlimited" : absl::StrCat(soft_limit);
  if (soft_limit < kOpenFilesWanted) {
    check.level = Level::kWarn;
    check.remedy = "each client takes a few descriptors; allow 4096 or more";
    check.hint = "systemctl edit crumbd  # [Service] LimitNOFILE=65536; in a shell: ulimit -n 4096";
  }
  return check;
}

}  // namespace crumb::cli
