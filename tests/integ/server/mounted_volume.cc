// See mounted_volume.h.
#include "tests/integ/server/mounted_volume.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace crumb::testing {
namespace {

constexpr uint64_t kStep = 64 * 1024;
constexpr uint64_t kStepsMax = 1 << 16;

}  // namespace

int RunProgram(const std::vector<std::string>& arguments) {
  std::vector<std::string> copy = arguments;
  std::vector<char*> argv;
  for (std::string& argument : copy) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

MountedVolume::MountedVolume(Kind kind, std::string folder, uint64_t bytes)
    : folder_(std::move(folder)), image_(folder_ + ".image") {
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  if (kind == Kind::kTmpfs) {
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = mount("none", folder_.c_str(), "tmpfs", 0, size.c_str()) == 0;
    if (!mounted_) why_ = std::string("no tmpfs can be mounted here: ") + std::strerror(errno);
    return;
  }
  const int fd = open(image_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const bool sized = fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  if (fd >= 0) close(fd);
  if (!sized || RunProgram({"mkfs.ext2", "-q", "-F", "-m", "0", image_}) != 0) {
    why_ = "mkfs.ext2 is missing";
  } else if (RunProgram({"mount", "-o", "loop", image_, folder_}) != 0) {
    why_ = "no image can be mounted here: that needs root and loop devices";
  } else {
    mounted_ = true;
  }
}

MountedVolume::~MountedVolume() {
  if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  unlink(image_.c_str());
}

bool MountedVolume::Fill(uint64_t leave) {
  const int fd = open(Filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const std::vector<uint8_t> bytes(kStep, 1);
  int error = 0;
  for (uint64_t i = 0; i < kStepsMax && error == 0 && FreeBytes() > leave; ++i) {
    const uint64_t step = std::min<uint64_t>(kStep, FreeBytes() - leave);
    if (write(fd, bytes.data(), step) < 0) error = errno;
  }
  // WHY: what is written is only promised so far; others may still get that room.
  const bool kept = fsync(fd) == 0;
  close(fd);
  return (error == ENOSPC || (error == 0 && FreeBytes() <= leave)) && kept;
}

void MountedVolume::Clear() { unlink(Filler().c_str()); }

uint64_t MountedVolume::FreeBytes() const {
  struct statvfs info {};
  if (statvfs(folder_.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace crumb::testing
