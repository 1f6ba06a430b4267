// See kill9_place.h.
#include "tests/bench/kill9_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"

namespace crumb {
namespace {

constexpr int kSampleEveryMs = 5;
constexpr uint64_t kMappingShare = 512;
constexpr size_t kFillerStep = 64 * 1024;
constexpr uint64_t kFillerStepsMax = 1 << 20;

}  // namespace

Place::Place(const PlaceOptions& options)
    : options_(options),
      dir_(options.parent),
      data_(options.volume.empty() ? options.parent : options.volume) {
  std::ofstream(ConfigFile()) << "data_dir: " << data_.path() << "/data\n"
                              << "listen:\n  grpc: 127.0.0.1:0\n  http: 127.0.0.1:0\n"
                              << "  socket: " << dir_.path() << "/s\n"
                              << "pool:\n  dram_bytes: " << options.dram_bytes << "\n"
                              << "nvme:\n  bytes: " << options.nvme_bytes << "\n"
                              << "  segment_bytes: " << options.segment_bytes << "\n"
                              << "log:\n  level: warning\n";
}

absl::StatusOr<std::unique_ptr<ChildDaemon>> Place::Spawn() const {
  return ChildDaemon::Spawn(
      {.program = options_.crumbd, .config_file = ConfigFile(), .log_file = dir_.path() + "/log"});
}

std::string Place::LogTail() const {
  std::ifstream file(dir_.path() + "/log");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return text.size() > 2000 ? text.substr(text.size() - 2000) : text;
}

bool Place::FillVolume() {
  const int fd = ::open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return errno == ENOSPC;
  const std::vector<uint8_t> bytes(kFillerStep, 1);
  int error = 0;
  for (uint64_t i = 0; i < kFillerStepsMax && error == 0; ++i) {
    if (::write(fd, bytes.data(), bytes.size()) < 0) error = errno;
  }
  ::close(fd);
  return error == ENOSPC;
}

void Place::ClearVolume() { ::unlink(Filler().c_str()); }

DiskSamples::DiskSamples(std::string folder) : folder_(std::move(folder)) {
  thread_ = std::thread([this] {
    while (!stop_) {
      Look();
      ::poll(nullptr, 0, kSampleEveryMs);
    }
  });
}

DiskSamples::~DiskSamples() {
  stop_ = true;
  thread_.join();
}

void DiskSamples::Look() {
  DIR* folder = ::opendir(folder_.c_str());
  if (folder == nullptr) return;  // not made yet
  uint64_t bytes = 0;
  uint64_t taken = 0;
  uint64_t files = 0;
  while (const dirent* entry = ::readdir(folder)) {
    struct stat info {};
    if (::fstatat(::dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(info.st_mode)) continue;
    ++files;
    bytes += static_cast<uint64_t>(info.st_size);
    taken += 512 * static_cast<uint64_t>(info.st_blocks);
  }
  ::closedir(folder);
  // Blocks that map a file to the volume are the file system's, about one in a thousand.
  taken -= std::min(taken, bytes / kMappingShare);
  bytes_max_ = std::max({bytes_max_.load(), bytes, taken});
  files_max_ = std::max(files_max_.load(), files);
  ++samples_;
}

}  // namespace crumb
