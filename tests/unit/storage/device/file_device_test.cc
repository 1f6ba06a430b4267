// Real files: locks, links, foreign files, sizes, fallbacks, a file cut under a running device,
// signals, a kernel that refuses io_uring, a full file system. Every path lies in a fresh
// directory. What cannot be undone in a process (locks, seccomp, mounts) happens in a child.
#include "storage/device/file_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "storage/device/aligned_buffer.h"
#include "tests/support/loop_device.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBytes = 4 << 20;
constexpr uint32_t kBlock = 4096;

absl::Status RefuseAll(Bytes head) {
  EXPECT_LE(head.size(), kFileHeadBytes);
  return absl::FailedPreconditionError("foreign data");
}

class FileDeviceTest : public ::testing::TestWithParam<bool> {  // io_uring or threads
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/crumb-file-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  FileDeviceOptions Options(const std::string& name = "log") {
    FileDeviceOptions options;
    options.path = folder_ + "/" + name;
    options.bytes = kBytes;
    options.depth = 16;
    options.lock_wait_ms = 0;
    options.allow_uring = GetParam();
    return options;
  }
  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string ReadText(const std::string& name) {
    std::ostringstream out;
    out << std::ifstream(folder_ + "/" + name).rdbuf();
    return out.str();
  }
  static int Do(BlockDevice* device, const IoRequest& request) {
    EXPECT_TRUE(device->Queue(request));
    std::array<IoCompletion, 4> done;
    for (int i = 0; i < 10'000; ++i) {
      device->Submit();
      pollfd entry = {device->wake_fd(), POLLIN, 0};
      const int ready = ::poll(&entry, 1, 10'000);
      EXPECT_TRUE(ready >= 0 || errno == EINTR);
      if (device->Poll(absl::MakeSpan(done)) == 1) return done[0].error;
    }
    ADD_FAILURE() << "never completed";
    return -1;
  }

  std::string folder_;
  AlignedBuffer buffer_{1 << 20};
};

TEST_P(FileDeviceTest, ANewFileIsPrivateAndWhole) {
  const mode_t before = ::umask(0);
  absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ::umask(before);
  ASSERT_TRUE(device.ok()) << device.status();
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), kBytes);
  EXPECT_TRUE(!device->preallocated || static_cast<uint64_t>(info.st_blocks) * 512 >= kBytes);
  EXPECT_THAT(device->description, HasSubstr(folder_));
  EXPECT_THAT(device->description, HasSubstr(device->uring ? "io_uring" : "threads"));
}

TEST_P(FileDeviceTest, ALooseModeIsTightened) {
  WriteText("log", "");
  ASSERT_EQ(::chmod((folder_ + "/log").c_str(), 0666), 0);
  ASSERT_TRUE(OpenFileDevice(Options()).ok());
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_P(FileDeviceTest, TwoDevicesOnOneFileAreImpossible) {
  absl::StatusOr<FileDevice> first = OpenFileDevice(Options());
  ASSERT_TRUE(first.ok());
  const absl::StatusOr<FileDevice> second = OpenFileDevice(Options());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use by another process"));
  first->device.reset();
  EXPECT_TRUE(OpenFileDevice(Options()).ok());
}

TEST_P(FileDeviceTest, ALockThatIsReleasedInTimeIsWaitedFor) {
  WriteText("log", "");
  const int fd = ::open((folder_ + "/log").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // holds the inherited lock a little longer
    ::poll(nullptr, 0, 100);
    ::_exit(0);
  }
  ::close(fd);
  FileDeviceOptions options = Options();
  options.lock_wait_ms = 10'000;
  EXPECT_TRUE(OpenFileDevice(options).ok());
}

TEST_P(FileDeviceTest, LinksAreNotFollowed) {
  WriteText("victim", "precious");
  std::filesystem::create_symlink(folder_ + "/victim", folder_ + "/log");
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("symbolic link"));
  EXPECT_EQ(ReadText("victim"), "precious");
}

TEST_P(FileDeviceTest, ARefusedFileKeepsItsBytesSizeAndMode) {
  WriteText("log", "somebody else's file");
  ASSERT_EQ(::chmod((folder_ + "/log").c_str(), 0640), 0);
  FileDeviceOptions options = Options();
  options.accept = &RefuseAll;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("log: foreign data"));
  EXPECT_EQ(ReadText("log"), "somebody else's file");
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
}

TEST_P(FileDeviceTest, WrongPathsNameTheRemedy) {
  EXPECT_THAT(std::string(OpenFileDevice(Options("no/log")).status().message()),
              HasSubstr("create its directory"));
  EXPECT_THAT(std::string(OpenFileDevice(Options(".")).status().message()),
              HasSubstr("is a directory"));
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(OpenFileDevice(Options("pipe")).status().message()),
              HasSubstr("neither a regular file"));
}

TEST_P(FileDeviceTest, WrongOptionsAreRefused) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, kBytes + 1, ~uint64_t{4095}}) {
    FileDeviceOptions options = Options();
    options.bytes = bytes;
    EXPECT_EQ(OpenFileDevice(options).status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  FileDeviceOptions options = Options();
  options.depth = 0;
  EXPECT_EQ(OpenFileDevice(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options("");
  options.path.clear();
  EXPECT_EQ(OpenFileDevice(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/log"));
}

TEST_P(FileDeviceTest, ATooSmallFileSystemIsAnErrorThatLeavesNothing) {
  FileDeviceOptions options = Options();
  options.bytes = 1ull << 50;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted) << device.status();
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("nvme.bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/log"));
}

TEST_P(FileDeviceTest, GrowsAndShrinksToTheCap) {
  for (uint64_t bytes : {kBytes, 2 * kBytes, kBytes / 2}) {
    FileDeviceOptions options = Options();
    options.bytes = bytes;
    const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->device->size_bytes(), bytes);
    EXPECT_EQ(std::filesystem::file_size(folder_ + "/log"), bytes);
  }
}

TEST_P(FileDeviceTest, AnOpenFileThatCannotGrowStaysAsItIs) {
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::Status grown = device->device->Resize(1ull << 50);
  EXPECT_EQ(grown.code(), absl::StatusCode::kResourceExhausted) << grown;
  EXPECT_THAT(std::string(grown.message()), HasSubstr("make room"));
  EXPECT_EQ(device->device->size_bytes(), kBytes);
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/log"), kBytes);
  EXPECT_EQ(Do(device->device.get(), {IoOp::kWriteDurable, 0, buffer_.data(), kBlock, 1}), 0);
}

TEST_P(FileDeviceTest, AnOpenFileGetsItsNewLengthReserved) {
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ASSERT_TRUE(device.ok()) << device.status();
  ASSERT_TRUE(device->device->Resize(2 * kBytes).ok());
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/log"), 2 * kBytes);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/log").c_str(), &info), 0);
  const uint64_t reserved = device->preallocated ? 2 * kBytes : 0;
  EXPECT_GE(uint64_t(info.st_blocks) * 512, reserved);
  ASSERT_TRUE(device->device->Resize(kBytes / 2).ok());
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/log"), kBytes / 2);
}

TEST_P(FileDeviceTest, FallbacksAreTakenAndStated) {
  FileDeviceOptions options = Options();
  options.allow_direct = false;
  options.allow_fallocate = false;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_FALSE(device->direct);
  EXPECT_FALSE(device->preallocated);
  EXPECT_THAT(device->description, HasSubstr("page cache (O_DIRECT is refused"));
  EXPECT_THAT(device->description, HasSubstr("sparse (fallocate is not supported"));
  EXPECT_THAT(device->description, Not(HasSubstr("preallocated")));
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/log"), kBytes);
  EXPECT_EQ(Do(device->device.get(), {IoOp::kWriteDurable, 0, buffer_.data(), kBlock, 1}), 0);
}

TEST_P(FileDeviceTest, AFileCutUnderUsFailsItsReadsOnly) {
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ASSERT_TRUE(device.ok());
  BlockDevice* disk = device->device.get();
  ASSERT_EQ(Do(disk, {IoOp::kWriteDurable, 0, buffer_.data(), 1 << 20, 1}), 0);
  ASSERT_EQ(::truncate((folder_ + "/log").c_str(), (1 << 20) - 4097), 0);
  EXPECT_EQ(Do(disk, {IoOp::kRead, 0, buffer_.data(), 1 << 20, 2}), EIO);
  EXPECT_EQ(Do(disk, {IoOp::kRead, 2 << 20, buffer_.data(), kBlock, 3}), EIO);
  EXPECT_EQ(Do(disk, {IoOp::kRead, 0, buffer_.data(), 1 << 19, 4}), 0);
  EXPECT_EQ(Do(disk, {IoOp::kWriteDurable, 2 << 20, buffer_.data(), kBlock, 5}), 0);
  EXPECT_EQ(Do(disk, {IoOp::kRead, 2 << 20, buffer_.data(), kBlock, 6}), 0);
}

// What is written to a file without a name is gone with the process: nothing may be called durable.
TEST_P(FileDeviceTest, AnUnlinkedFilePromisesNothing) {
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ASSERT_TRUE(device.ok());
  BlockDevice* disk = device->device.get();
  EXPECT_EQ(Do(disk, {IoOp::kWriteDurable, 0, buffer_.data(), kBlock, 1}), 0);
  ASSERT_TRUE(std::filesystem::remove(folder_ + "/log"));
  EXPECT_EQ(Do(disk, {IoOp::kWriteDurable, 0, buffer_.data(), kBlock, 2}), ENOENT);
  EXPECT_EQ(Do(disk, {IoOp::kSync, 0, nullptr, 0, 3}), ENOENT);
}

TEST_P(FileDeviceTest, AnUnlinkedFileGoesOnServing) {
  const absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
  ASSERT_TRUE(device.ok());
  ASSERT_TRUE(std::filesystem::remove(folder_ + "/log"));
  EXPECT_EQ(Do(device->device.get(), {IoOp::kWrite, 0, buffer_.data(), kBlock, 1}), 0);
  EXPECT_EQ(Do(device->device.get(), {IoOp::kRead, 0, buffer_.data(), kBlock, 2}), 0);
}

void Nothing(int) {}

// Ring depth 4, a slow reaper (one completion a turn), a signal every millisecond: each of 10,000
// transfers, neighbours among them, completes exactly once.
TEST_P(FileDeviceTest, SignalsDoNotLoseCompletions) {
  FileDeviceOptions options = Options();
  options.depth = 4;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  ASSERT_TRUE(device.ok());
  struct sigaction action {
  }, before{};
  action.sa_handler = &Nothing;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval every_ms = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &every_ms, nullptr), 0);
  constexpr uint64_t kOperations = 10'000;
  uint64_t queued = 0, completed = 0;
  std::vector<int> seen(kOperations);
  for (uint64_t turn = 0; completed < kOperations && turn < 100 * kOperations; ++turn) {
    const IoOp op = queued / 4 % 3 == 0 ? IoOp::kWrite : IoOp::kRead;
    const uint64_t offset = queued % 64 * kBlock;
    if (queued < kOperations &&
        device->device->Queue({op, offset, buffer_.data() + offset, kBlock, queued})) {
      ++queued;
      continue;
    }
    device->device->Submit();
    std::array<IoCompletion, 1> done;
    const size_t count = device->device->Poll(absl::MakeSpan(done));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(done[i].error, 0);
      ++seen[done[i].token];
    }
    completed += count;
    pollfd entry = {device->device->wake_fd(), POLLIN, 0};
    if (count == 0) ::poll(&entry, 1, 1000);
  }
  ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_EQ(completed, kOperations);
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_EQ(device->device->in_flight(), 0u);
}

// Runs `body` in a child; its result is the child's exit code.
template <typename F>
int InChild(F&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kChildSkips = 77;

// As the default profiles of container runtimes do.
bool RefuseIoUring(int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_P(FileDeviceTest, WhereTheKernelRefusesIoUringThreadsServe) {
  for (int error : {EPERM, ENOSYS}) {
    const int code = InChild([&] {
      if (!RefuseIoUring(error)) return kChildSkips;
      absl::StatusOr<FileDevice> device = OpenFileDevice(Options());
      if (!device.ok() || device->uring) return 1;
      if (device->description.find("threads (io_uring") == std::string::npos && GetParam())
        return 2;
      std::memset(buffer_.data(), 7, buffer_.size());
      BlockDevice* disk = device->device.get();
      if (Do(disk, {IoOp::kWriteDurable, 0, buffer_.data(), 1 << 20, 1}) != 0) return 3;
      std::memset(buffer_.data(), 0, buffer_.size());
      if (Do(disk, {IoOp::kRead, 0, buffer_.data(), 1 << 20, 2}) != 0) return 4;
      return buffer_.data()[(1 << 20) - 1] == 7 ? 0 : 5;
    });
    if (code == kChildSkips) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(code, 0);
  }
}

TEST_P(FileDeviceTest, AFullFileSystemIsRefusedAtTheStartOrByTheWrite) {
  const int code = InChild([&] {
    if (::unshare(CLONE_NEWNS) != 0) return kChildSkips;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kChildSkips;
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=8m") != 0) return kChildSkips;
    FileDeviceOptions options = Options();
    options.bytes = 16 << 20;
    if (!absl::IsResourceExhausted(OpenFileDevice(options).status())) return 1;
    if (std::filesystem::exists(options.path)) return 2;
    options.allow_fallocate = false;  // sparse: it shows only in the write
    absl::StatusOr<FileDevice> device = OpenFileDevice(options);
    if (!device.ok()) return 3;
    int error = 0;
    for (uint64_t at = 0; at < options.bytes && error == 0; at += 1 << 20) {
      error = Do(device->device.get(), {IoOp::kWrite, at, buffer_.data(), 1 << 20, 1});
    }
    if (error != ENOSPC) return 4;
    if (Do(device->device.get(), {IoOp::kRead, 0, buffer_.data(), 1 << 20, 2}) != 0) return 5;
    // The same file again: what it holds can be read, whether or not the rest has room.
    device->device.reset();
    options.allow_fallocate = true;
    device = OpenFileDevice(options);
    if (!device.ok() || device->preallocated) return 6;
    if (device->description.find("sparse (the file system is full") == std::string::npos) return 7;
    if (Do(device->device.get(), {IoOp::kRead, 0, buffer_.data(), 1 << 20, 2}) != 0) return 8;
    // A longer one is still refused, and the file stays.
    device->device.reset();
    options.bytes = 32 << 20;
    if (!absl::IsResourceExhausted(OpenFileDevice(options).status())) return 9;
    return std::filesystem::file_size(options.path) == 16 << 20 ? 0 : 10;
  });
  if (code == kChildSkips) GTEST_SKIP() << "no private mounts here (needs root)";
  EXPECT_EQ(code, 0);
}

TEST_P(FileDeviceTest, ARawBlockDeviceServesWithinItsSize) {
  WriteText("backing", std::string(kBytes, '\0'));
  const LoopDevice loop(folder_ + "/backing");
  if (loop.path().empty()) GTEST_SKIP() << "no loop device here (needs root)";
  FileDeviceOptions options = Options();
  options.path = loop.path();
  options.bytes = 2 * kBytes;
  const absl::Status large = OpenFileDevice(options).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("lower nvme.bytes"));
  options.bytes = kBytes / 2;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_THAT(device->description, HasSubstr("of a block device"));
  EXPECT_EQ(device->device->size_bytes(), kBytes / 2);
  std::memset(buffer_.data(), 3, buffer_.size());
  EXPECT_EQ(Do(device->device.get(), {IoOp::kWriteDurable, 1 << 20, buffer_.data(), 1 << 20, 1}),
            0);
  std::memset(buffer_.data(), 0, buffer_.size());
  EXPECT_EQ(Do(device->device.get(), {IoOp::kRead, 1 << 20, buffer_.data(), 1 << 20, 2}), 0);
  EXPECT_EQ(buffer_.data()[12345], 3);
  EXPECT_EQ(device->device->Resize(2 * kBytes).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device->device->size_bytes(), kBytes / 2);
  EXPECT_TRUE(device->device->Resize(kBytes).ok());
  EXPECT_TRUE(device->device->Resize(kBytes / 4).ok());
  EXPECT_EQ(OpenFileDevice(options).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Each request is whole sectors of the largest size in use.
TEST_P(FileDeviceTest, ADeviceOf4KiBSectorsServesEveryBlock) {
  WriteText("backing", std::string(kBytes, '\0'));
  const LoopDevice loop(folder_ + "/backing", kBlock);
  if (loop.path().empty()) GTEST_SKIP() << "no loop device with sectors of 4 KiB here";
  FileDeviceOptions options = Options();
  options.path = loop.path();
  options.bytes = kBytes;
  const absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_TRUE(device->direct) << device->description;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{3 * kBlock}, kBytes - kBlock}) {
    std::memset(buffer_.data(), static_cast<int>(offset / kBlock + 1), kBlock);
    ASSERT_EQ(Do(device->device.get(), {IoOp::kWriteDurable, offset, buffer_.data(), kBlock, 1}),
              0);
    std::memset(buffer_.data(), 0, kBlock);
    ASSERT_EQ(Do(device->device.get(), {IoOp::kRead, offset, buffer_.data(), kBlock, 2}), 0);
    EXPECT_EQ(buffer_.data()[kBlock - 1], static_cast<uint8_t>(offset / kBlock + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Rings, FileDeviceTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Uring" : "Pool"; });

}  // namespace
}  // namespace crumb
