// What the machine, or the control group this process runs in, has: memory, cores, disk space.
// Sizes in the configuration are checked against it. Any thread; reads /proc and /sys only.
#ifndef CRUMB_CACHESVC_SERVER_MACHINE_H_
#define CRUMB_CACHESVC_SERVER_MACHINE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cachesvc/base/status.h"

namespace crumb {

struct Volume {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // for this user
  uint64_t id = 0;               // which volume: equal for paths that share one
};

enum class PathKind : uint8_t { kAbsent, kDirectory, kFile, kBlockDevice, kOther, kUnreadable };

struct Machine {
  uint64_t memory_bytes = 0;  // the smaller of physical memory and every cgroup limit above us
  uint32_t cores = 1;         // the smaller of the affinity mask and the cgroup's quota
  std::string host_name;
  bool root = false;
  bool built_with_cuda = false;
  std::vector<std::string> codec_backends = {"reference"};  // that this processor runs
  // The volume that holds `path`, or would hold it: asks the nearest existing parent. Of a block
  // device: itself.
  std::function<absl::StatusOr<Volume>(const std::string& path)> volume;
  // Bytes that the file at `path` holds already, and its length (0 if absent).
  std::function<uint64_t(const std::string& path)> file_bytes;
  std::function<uint64_t(const std::string& path)> file_length;
  std::function<PathKind(const std::string& path)> path_kind;  // follows links
};

Machine DetectMachine();

// The figure in a cgroup file: UINT64_MAX for "max" or anything that is no number.
uint64_t ParseCgroupLimit(absl::string_view text);
// "quota period" of cpu.max as whole cores, rounded up; UINT32_MAX for "max".
uint32_t ParseCgroupCores(absl::string_view text);

// A whole small file of /proc or /sys (at most 64 KiB); empty if it cannot be read.
std::string ReadSmallFile(const std::string& path);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_MACHINE_H_
