// The log on a real file: cut, scribbled over and unlinked under the running log; foreign files;
// a second log; kill -9 in the middle of writing (a child process). One directory per test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cachesvc/base/rng.h"
#include "storage/device/file_device.h"
#include "storage/segment/segment_log.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using testing::LogTester;

constexpr uint64_t kBytes = 16 << 20;
constexpr uint32_t kSegment = 1 << 20;
constexpr uint32_t kPayload = 100'000;

SegmentLogOptions LogOptions() {
  SegmentLogOptions options;
  options.bytes_max = kBytes;
  options.segment_bytes = kSegment;
  return options;
}

class SegmentLogFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/crumb-logfile-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/log";
  }
  void TearDown() override {
    log_.reset();
    device_.reset();
    std::filesystem::remove_all(folder_);
  }
  FileDeviceOptions DeviceOptions() const {
    FileDeviceOptions options;
    options.path = path_;
    options.bytes = kBytes;
    options.depth = 64;
    options.accept = &SegmentLog::CheckHead;
    return options;
  }
  absl::Status Start() {
    log_.reset();
    device_.reset();
    absl::StatusOr<FileDevice> device = OpenFileDevice(DeviceOptions());
    if (!device.ok()) return device.status();
    device_ = std::move(device->device);
    SegmentLogOptions options = LogOptions();
    options.bytes_present = device->bytes_before;
    options.stop = &stop_;
    log_ = std::make_unique<LogTester>(device_.get(), options);
    return log_->Open();
  }
  void Scribble(uint64_t offset, const std::string& text) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << text;
  }

  std::atomic<bool> stop_{false};
  std::string folder_, path_;
  std::unique_ptr<BlockDevice> device_;
  std::unique_ptr<LogTester> log_;
};

TEST_F(SegmentLogFileTest, AFileCutAndScribbledUnderUseLosesWhatWasTouched) {
  ASSERT_TRUE(Start().ok());
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 60; ++id) at[id] = log_->Append(id, kPayload, true).location;
  const auto begin = [&at](uint64_t id) {
    return uint64_t{at[id].segment} * kSegment + uint64_t{at[id].offset_blocks} * 4096;
  };
  Scribble(begin(5) + 50'000, "x");
  std::filesystem::resize_file(path_, begin(40) + at[40].record_bytes - 4097);
  for (uint64_t id = 0; id < 60; ++id) {
    const bool cut = begin(id) + at[id].record_bytes > begin(40) + at[40].record_bytes - 4097;
    // Cut pages: an error or, once a later write made the file longer again, zeros.
    EXPECT_EQ(log_->Read(id, at[id]) == BlockResult::kOk, id != 5 && !cut) << id;
  }
  EXPECT_GE(log_->log().stats().checksum_failures, 1u);
  // The file is whole again after a restart; what was cut off is gone.
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(std::filesystem::file_size(path_), kBytes);
  for (const auto& [key, record] : log_->recovered()) {
    for (uint64_t id = 0; id < 60; ++id) {
      if (key == testing::TestKey(id)) log_->Read(id, record.location);  // never lies
    }
  }
  EXPECT_EQ(log_->Append(100, kPayload, true).result, BlockResult::kOk);
}

// Cut while nobody uses it, anywhere: what lies wholly before the cut comes back, and stays.
TEST_F(SegmentLogFileTest, ACutFileKeepsWhatLiesBeforeTheCut) {
  for (const bool clean : {true, false}) {
    std::filesystem::remove(path_);
    ASSERT_TRUE(Start().ok());
    EXPECT_EQ(log_->log().stats().bytes_missing, 0u);
    std::map<uint64_t, DiskLocation> at;
    for (uint64_t id = 0; id < 40; ++id) at[id] = log_->Append(id, kPayload, true).location;
    if (clean) {
      ASSERT_TRUE(log_->log().Close().ok());
    }
    log_.reset();
    device_.reset();
    const std::string whole = path_ + ".whole";
    std::filesystem::copy_file(path_, whole, std::filesystem::copy_options::overwrite_existing);
    for (const uint64_t cut :
         {uint64_t{2 * kSegment - 2048}, uint64_t{3 * kSegment - 4096}, uint64_t{3 * kSegment},
          uint64_t{2 * kSegment + 500'001}, uint64_t{kSegment / 2}, uint64_t{100'000}}) {
      SCOPED_TRACE(cut);
      std::filesystem::copy_file(whole, path_, std::filesystem::copy_options::overwrite_existing);
      std::filesystem::resize_file(path_, cut);
      for (int start = 0; start < 2; ++start) {
        ASSERT_TRUE(Start().ok());
        EXPECT_EQ(log_->log().stats().bytes_missing, start == 0 ? kBytes - cut : 0);
        for (const auto& [id, where] : at) {
          const uint64_t end = uint64_t{where.segment} * kSegment +
                               uint64_t{where.offset_blocks} * 4096 + where.record_bytes;
          ASSERT_EQ(log_->Recovered(id), end <= cut) << id << " start " << start;
          if (end > cut) continue;
          ASSERT_EQ(log_->Read(id, log_->RecoveredAt(id)), BlockResult::kOk) << id;
        }
        EXPECT_EQ(log_->Append(100, kPayload, true).result, BlockResult::kOk);
      }
    }
  }
}

TEST_F(SegmentLogFileTest, AnOpenThatIsStoppedChangesNothing) {
  ASSERT_TRUE(Start().ok());
  ASSERT_EQ(log_->Append(1, kPayload, true).result, BlockResult::kOk);
  log_.reset();
  device_.reset();
  const auto content = [this] {
    std::ostringstream now;
    now << std::ifstream(path_).rdbuf();
    return now.str();
  };
  const std::string before = content();
  stop_ = true;
  EXPECT_EQ(Start().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(content() == before);
  stop_ = false;
  ASSERT_TRUE(Start().ok());
  EXPECT_TRUE(log_->Recovered(1));
}

TEST_F(SegmentLogFileTest, AnUnlinkedFileGoesOnUntilTheRestart) {
  ASSERT_TRUE(Start().ok());
  const DiskLocation at = log_->Append(1, kPayload, true).location;
  std::filesystem::remove(path_);
  EXPECT_EQ(log_->Read(1, at), BlockResult::kOk);
  EXPECT_EQ(log_->Append(2, kPayload, false).result, BlockResult::kOk);
  EXPECT_EQ(log_->Append(3, kPayload, true).result, BlockResult::kIo);  // it would be a lie
  ASSERT_TRUE(Start().ok());
  EXPECT_TRUE(log_->recovered().empty());
}

TEST_F(SegmentLogFileTest, ForeignFilesAreRefusedWhole) {
  const std::string text(100'000, 'q');
  std::ofstream(path_) << text;
  const absl::Status status = Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a segment log"));
  std::ostringstream now;
  now << std::ifstream(path_).rdbuf();
  EXPECT_EQ(now.str(), text);
}

TEST_F(SegmentLogFileTest, ZerosOfAnotherSizeAreTaken) {
  std::ofstream(path_) << std::string(10'000, '\0');
  EXPECT_TRUE(Start().ok());
}

// The child writes durable pages and tells each acknowledged one over a pipe, until it is killed.
// Page n has key n; the parent counts on every page that it was told of.
void WriteUntilKilled(const FileDeviceOptions& options, uint64_t first, int fd) {
  absl::StatusOr<FileDevice> device = OpenFileDevice(options);
  if (!device.ok()) ::_exit(3);
  LogTester log(device->device.get(), LogOptions());
  if (!log.Open().ok()) ::_exit(4);
  for (uint64_t id = first;; ++id) {
    const auto bytes = static_cast<uint32_t>(1 + id * 7919 % 40'000);
    if (log.Append(id, bytes, true).result != BlockResult::kOk) ::_exit(5);
    if (::write(fd, &id, sizeof(id)) != sizeof(id)) ::_exit(6);
  }
}

TEST_F(SegmentLogFileTest, KillsAtRandomMomentsLoseNothingAcknowledged) {
  Rng rng(11);
  uint64_t next = 0;
  for (int round = 0; round < 12; ++round) {
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(fds[0]);
      WriteUntilKilled(DeviceOptions(), next, fds[1]);
    }
    ::close(fds[1]);
    const uint64_t wanted = 1 + rng.Below(30);
    std::vector<uint64_t> told;
    uint64_t id = 0;
    while (told.size() < wanted && ::read(fds[0], &id, sizeof(id)) == sizeof(id)) {
      told.push_back(id);
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    while (::read(fds[0], &id, sizeof(id)) == sizeof(id)) told.push_back(id);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer gave up: " << WEXITSTATUS(status);
    ::close(fds[0]);
    ASSERT_GE(told.size(), wanted);

    const absl::Status opened = Start();
    ASSERT_TRUE(opened.ok()) << opened;
    for (uint64_t done = 0; done <= told.back(); ++done) {
      ASSERT_TRUE(log_->Recovered(done)) << done << " in round " << round;
      ASSERT_EQ(log_->Read(done, log_->RecoveredAt(done)), BlockResult::kOk);
    }
    next = told.back() + 1;
    log_.reset();
    device_.reset();
  }
}

}  // namespace
}  // namespace crumb
