// The daemon's directory: made, locked for this process, and private. Files in it: `lock`,
// `secret`, `catalog`, `rotations/`, `nvme/` (docs/operations.md). One owner: the daemon's start.
#ifndef CRUMB_CACHESVC_SERVER_DATA_DIR_H_
#define CRUMB_CACHESVC_SERVER_DATA_DIR_H_

#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/server/files.h"

namespace crumb {

class DataDir {
 public:
  // Makes `path` if it is absent; a missing parent is made only below a home directory's default
  // (the caller checked the others). FAILED_PRECONDITION names the pid of a daemon that has it.
  static absl::StatusOr<DataDir> Open(const std::string& path);

  const Directory& directory() const { return directory_; }
  // What was repaired or looks odd: for the log.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Directory directory_;
  UniqueFd lock_;  // held until the process ends
  std::vector<std::string> notes_;
};

// Whether Open could work with `path`, as far as can be told without leaving anything behind: it
// is, or can be made, a folder of this user's in which files can be made. Locks nothing.
absl::Status ProbeDataDir(const std::string& path);

// Locks `name` in `directory` for this process; the error names the holder's pid where known.
absl::StatusOr<UniqueFd> LockFile(const Directory& directory, const std::string& name);

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_DATA_DIR_H_
