// This process as the kernel sees it: /proc/self. Any thread; reads small files.
#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cachesvc/server/machine.h"
#include "cachesvc/server/snapshot.h"

namespace crumb {
namespace {

constexpr size_t kFdsMax = 1 << 20;

// "VmRSS:     123 kB" -> bytes.
uint64_t StatusField(const std::string& status, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t value = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &value)) return 0;
    return words.size() > 2 && words[2] == "kB" ? value * 1024 : value;
  }
  return 0;
}

uint64_t OpenFds() {
  DIR* stream = opendir("/proc/self/fd");
  if (stream == nullptr) return 0;
  uint64_t count = 0;
  while (count < kFdsMax && readdir(stream) != nullptr) ++count;
  closedir(stream);
  return count > 3 ? count - 3 : 0;  // ".", ".." and the stream itself
}

// Fields after the command's name, which may hold anything but ends at the last ')'.
std::vector<std::string> StatFields() {
  const std::string stat = ReadSmallFile("/proc/self/stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return {};
  return absl::StrSplit(stat.substr(end + 1), ' ', absl::SkipEmpty());
}

uint64_t BootTime() { return StatusField(ReadSmallFile("/proc/stat"), "btime"); }

}  // namespace

ProcessFacts ReadProcessFacts() {
  ProcessFacts facts;
  const std::string status = ReadSmallFile("/proc/self/status");
  facts.resident_bytes = StatusField(status, "VmRSS:");
  facts.virtual_bytes = StatusField(status, "VmSize:");
  facts.locked_bytes = StatusField(status, "VmLck:") + StatusField(status, "VmPin:");
  facts.threads = StatusField(status, "Threads:");
  facts.open_fds = OpenFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.fds_max = limit.rlim_cur;
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    facts.cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  const std::vector<std::string> fields = StatFields();
  constexpr size_t kStartField = 19;  // starttime is field 22; the first here is 3
  uint64_t ticks = 0;
  const long per_second = sysconf(_SC_CLK_TCK);
  if (fields.size() > kStartField && absl::SimpleAtoi(fields[kStartField], &ticks) &&
      per_second > 0) {
    facts.start_time = static_cast<double>(BootTime()) +
                       static_cast<double>(ticks) / static_cast<double>(per_second);
  }
  return facts;
}

}  // namespace crumb
