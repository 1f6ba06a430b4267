// Pages of every small size through the log, in memory and on a device whose sectors have 4 KiB;
// the smallest log there is, and what is said below it. One directory per test.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "cachesvc/base/rng.h"
#include "storage/device/file_device.h"
#include "storage/device/mem_device.h"
#include "storage/segment/log_format.h"
#include "storage/segment/segment_log.h"
#include "tests/support/log_tester.h"
#include "tests/support/loop_device.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;
using testing::LogTester;

constexpr uint64_t kBytes = 16 << 20;
constexpr uint32_t kSegment = 1 << 20;
constexpr uint32_t kSector = 4096;
constexpr uint32_t kPayloadMax = 4097;
constexpr uint64_t kCheckEvery = 97;

SegmentLogOptions Options(uint64_t bytes = kBytes) {
  SegmentLogOptions options;
  options.bytes_max = bytes;
  options.segment_bytes = kSegment;
  options.format_seed = 7;
  return options;
}

std::vector<uint32_t> Shuffled(uint32_t first, uint32_t last, uint64_t seed) {
  std::vector<uint32_t> out(last - first + 1);
  std::iota(out.begin(), out.end(), first);
  Rng rng(seed);
  for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.Below(i)]);
  return out;
}

// Page `size` is the page of key `size`: each is read back at once, those that were not reclaimed
// again and again, also by the next start, which knows them exactly.
void RunSizes(LogTester* log, const std::vector<uint32_t>& sizes, uint64_t seed) {
  ASSERT_TRUE(log->Open().ok());
  Rng rng(seed);
  std::map<BlockKey, uint32_t> size_of;
  std::map<uint32_t, DiskLocation> live;
  for (const uint32_t size : sizes) {
    size_of[testing::TestKey(size)] = size;
    const LogTester::Outcome outcome = log->Append(size, size, rng.Chance(1, 50));
    ASSERT_EQ(outcome.result, BlockResult::kOk) << size;
    ASSERT_EQ(outcome.location.record_bytes, PageSlotBytes(size));
    ASSERT_EQ(outcome.location.record_bytes,
              (kPageHeaderBytes + size + kSector - 1) / kSector * kSector);
    ASSERT_EQ(log->Read(size, outcome.location), BlockResult::kOk) << size;
    live[size] = outcome.location;
    for (const LogEvent& event : log->TakeEvents()) {
      if (event.kind == LogEventKind::kReclaimed) live.erase(size_of.at(event.key));
    }
    if (size % kCheckEvery != 0) continue;
    for (const auto& [other, location] : live) {
      if (!rng.Chance(1, 20)) continue;
      ASSERT_EQ(log->Read(other, location), BlockResult::kOk) << other;
    }
  }
  log->Settle();
  for (const LogEvent& event : log->TakeEvents()) {
    if (event.kind == LogEventKind::kReclaimed) live.erase(size_of.at(event.key));
  }
  ASSERT_FALSE(live.empty());
  ASSERT_TRUE(log->Open().ok());  // after a kill
  EXPECT_EQ(log->recovered().size(), live.size());
  for (const auto& [size, location] : live) {
    ASSERT_TRUE(log->Recovered(size)) << size;
    EXPECT_EQ(log->RecoveredAt(size), location);
    EXPECT_EQ(log->Read(size, log->RecoveredAt(size)), BlockResult::kOk) << size;
  }
}

// MemDevice refuses whatever is not whole, aligned sectors.
TEST(SegmentLogSizesTest, EverySizeAroundASectorOnAStrictDevice) {
  MemDevice device({kBytes, kSector, 64, false});
  LogTester log(&device, Options());
  RunSizes(&log, Shuffled(1, kPayloadMax, 3), 5);
}

TEST(SegmentLogSizesTest, SizesAroundEachBorderOfLargerPages) {
  std::vector<uint32_t> sizes;
  for (uint32_t border = 512; border <= 64 * 1024; border += border < 8192 ? 512 : 4096) {
    for (const uint32_t at : {border - uint32_t{kPageHeaderBytes}, border}) {
      for (uint32_t size = at - 1; size <= at + 1; ++size) sizes.push_back(size);
    }
  }
  MemDevice device({kBytes, kSector, 64, false});
  LogTester log(&device, Options());
  RunSizes(&log, sizes, 9);
}

class OnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/tmp/crumb-sizes-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::filesystem::path file = folder_ + "/backing";
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, kBytes), 0);
    ::close(fd);
    loop_ = std::make_unique<LoopDevice>(file, kSector);
    if (loop_->path().empty()) GTEST_SKIP() << "no loop device with sectors of 4 KiB here";
    absl::StatusOr<FileDevice> opened =
        OpenFileDevice({.path = loop_->path(), .bytes = kBytes, .depth = 64});
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(opened->direct) << opened->description;
    device_ = std::move(opened->device);
  }
  void TearDown() override {
    device_.reset();
    loop_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  std::unique_ptr<LoopDevice> loop_;
  std::unique_ptr<BlockDevice> device_;
};

TEST_F(OnDisk, SizesAroundASectorOf4KiB) {
  std::vector<uint32_t> sizes = Shuffled(3900, kPayloadMax, 3);
  for (uint32_t size = 1; size < 3900; size += 61) sizes.push_back(size);
  LogTester log(device_.get(), Options());
  RunSizes(&log, sizes, 5);
}

TEST(SegmentLogSizesTest, TheSmallestLogWorksAndASmallerOneSaysWhatItNeeds) {
  constexpr uint64_t kLeast = uint64_t{kSegmentsMin} * kSegment;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{kSector}, kLeast - kSector}) {
    MemDevice device({std::max<uint64_t>(bytes, kSector), kSector, 64, false});
    LogTester log(&device, Options(bytes));
    const absl::Status status = log.Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("segments")) << bytes;
  }
  MemDevice device({kLeast, kSector, 64, false});
  LogTester log(&device, Options(kLeast));
  RunSizes(&log, Shuffled(1, 1500, 3), 5);
  MemDevice smaller({kLeast - kSector, kSector, 64, false});
  LogTester beyond(&smaller, Options(kLeast));  // more than the device has
  EXPECT_EQ(beyond.Open().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace crumb
