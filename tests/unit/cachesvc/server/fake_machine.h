// A machine of known size for tests of the configuration. One thread.
#ifndef CRUMB_TESTS_UNIT_CACHESVC_SERVER_FAKE_MACHINE_H_
#define CRUMB_TESTS_UNIT_CACHESVC_SERVER_FAKE_MACHINE_H_

#include <map>
#include <string>

#include "cachesvc/server/machine.h"

namespace crumb {

inline constexpr uint64_t kFakeGiB = 1ull << 30;

// 16 GiB of memory, 8 cores, 100 GiB free of a 200 GiB volume. Directories: /, /var/lib, /data,
// /run; file: /data/file; unreadable: /secret.
inline Machine FakeMachine() {
  Machine machine;
  machine.memory_bytes = 16 * kFakeGiB;
  machine.cores = 8;
  machine.host_name = "node7";
  machine.root = true;
  machine.codec_backends = {"reference", "avx2"};
  machine.volume = [](const std::string&) -> absl::StatusOr<Volume> {
    return Volume{.total_bytes = 200 * kFakeGiB, .available_bytes = 100 * kFakeGiB};
  };
  machine.file_bytes = [](const std::string&) -> uint64_t { return 0; };
  machine.file_length = [](const std::string&) -> uint64_t { return 0; };
  machine.path_kind = [](const std::string& path) {
    static const std::map<std::string, PathKind> kinds = {{"/", PathKind::kDirectory},
                                                          {"/var/lib", PathKind::kDirectory},
                                                          {"/data", PathKind::kDirectory},
                                                          {"/data/file", PathKind::kFile},
                                                          {"/run", PathKind::kDirectory},
                                                          {"/data/pipe", PathKind::kOther},
                                                          {"/data/disk", PathKind::kBlockDevice},
                                                          {"/secret", PathKind::kUnreadable}};
    const auto found = kinds.find(path);
    return found == kinds.end() ? PathKind::kAbsent : found->second;
  };
  return machine;
}

}  // namespace crumb

#endif  // CRUMB_TESTS_UNIT_CACHESVC_SERVER_FAKE_MACHINE_H_
