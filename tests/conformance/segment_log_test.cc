// One life of a segment log over every device: io_uring and thread pool on real files (O_DIRECT and
// page cache), memory, the fault decorator without faults. One thread.
#include "storage/segment/segment_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "storage/device/fault_device.h"
#include "storage/device/file_device.h"
#include "storage/device/mem_device.h"
#include "storage/device/stripe_set.h"
#include "tests/support/log_tester.h"

namespace crumb {
namespace {

using testing::LogTester;

constexpr uint64_t kBytes = 16 << 20;
constexpr uint32_t kSegment = 1 << 20;

// What survives a restart: a file's path, or the memory itself.
class Home {
 public:
  virtual ~Home() = default;
  virtual absl::Status Start() = 0;  // makes device()
  virtual void Stop() = 0;
  virtual BlockDevice* device() = 0;
};

class FileHome final : public Home {
 public:
  explicit FileHome(FileDeviceOptions options) : options_(std::move(options)) {
    std::string pattern = "/tmp/crumb-log-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.path = folder_ + "/log";
    options_.bytes = kBytes;
    options_.depth = 32;
    options_.accept = &SegmentLog::CheckHead;
  }
  ~FileHome() override {
    Stop();
    ::unlink(options_.path.c_str());
    ::rmdir(folder_.c_str());
  }
  absl::Status Start() override {
    absl::StatusOr<FileDevice> device = OpenFileDevice(options_);
    if (!device.ok()) return device.status();
    if (options_.allow_uring && !device->uring) {
      return absl::UnimplementedError(device->description);
    }
    device_ = std::move(device->device);
    return absl::OkStatus();
  }
  void Stop() override { device_.reset(); }
  BlockDevice* device() override { return device_.get(); }

 private:
  FileDeviceOptions options_;
  std::string folder_;
  std::unique_ptr<BlockDevice> device_;
};

// Two files, striped.
class StripeHome final : public Home {
 public:
  explicit StripeHome(bool uring) {
    std::string pattern = "/tmp/crumb-log-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.paths = {folder_ + "/a", folder_ + "/b"};
    options_.bytes = kBytes + 2 * kStripeLabelBytes;
    options_.unit_bytes = 64 << 10;
    options_.each.depth = 32;
    options_.each.allow_uring = uring;
    options_.each.accept = &SegmentLog::CheckHead;
  }
  ~StripeHome() override {
    Stop();
    for (const std::string& path : options_.paths) ::unlink(path.c_str());
    ::rmdir(folder_.c_str());
  }
  absl::Status Start() override {
    absl::StatusOr<FileDevice> device = OpenStripeSet(options_);
    if (!device.ok()) return device.status();
    if (options_.each.allow_uring && !device->uring) {
      return absl::UnimplementedError(device->description);
    }
    device_ = std::move(device->device);
    std::swap(options_.paths[0], options_.paths[1]);  // the next start names them the other way
    return absl::OkStatus();
  }
  void Stop() override { device_.reset(); }
  BlockDevice* device() override { return device_.get(); }

 private:
  StripeSetOptions options_;
  std::string folder_;
  std::unique_ptr<BlockDevice> device_;
};

class MemHome final : public Home {
 public:
  explicit MemHome(bool decorated) : decorated_(decorated) {}
  absl::Status Start() override { return absl::OkStatus(); }
  void Stop() override {}
  BlockDevice* device() override { return decorated_ ? static_cast<BlockDevice*>(&fault_) : &mem_; }

 private:
  bool decorated_;
  MemDevice mem_{{kBytes, 4096, 32, false}};
  FaultDevice fault_{&mem_, nullptr};
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Home>()> make;
};

std::vector<Case> Cases() {
  const auto file = [](FileDeviceOptions options) { return std::make_unique<FileHome>(options); };
  return {
      {"Uring", [=] { return file({}); }},
      {"UringPageCache", [=] { return file({.allow_direct = false}); }},
      {"UringSparse", [=] { return file({.allow_fallocate = false}); }},
      {"Pool", [=] { return file({.allow_uring = false}); }},
      {"PoolPageCache", [=] { return file({.allow_uring = false, .allow_direct = false}); }},
      {"StripedUring", [] { return std::make_unique<StripeHome>(true); }},
      {"StripedPool", [] { return std::make_unique<StripeHome>(false); }},
      {"Mem", [] { return std::make_unique<MemHome>(false); }},
      {"FaultFree", [] { return std::make_unique<MemHome>(true); }},
  };
}

class SegmentLogConformanceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    home_ = GetParam().make();
    const absl::Status status = home_->Start();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_NO_FATAL_FAILURE(Open());
  }
  void TearDown() override { log_.reset(); }

  void Open() {
    SegmentLogOptions options;
    options.bytes_max = kBytes;
    options.segment_bytes = kSegment;
    log_ = std::make_unique<LogTester>(home_->device(), options);
    const absl::Status status = log_->Open();
    ASSERT_TRUE(status.ok()) << status;
  }
  void Restart() {
    log_.reset();
    home_->Stop();
    ASSERT_TRUE(home_->Start().ok());
    ASSERT_NO_FATAL_FAILURE(Open());
  }

  std::unique_ptr<Home> home_;
  std::unique_ptr<LogTester> log_;
};

TEST_P(SegmentLogConformanceTest, ALife) {
  std::map<uint64_t, DiskLocation> at;
  for (uint64_t id = 0; id < 100; ++id) {
    const auto bytes = static_cast<uint32_t>(1 + id * id * 19 % 150'000);
    const LogTester::Outcome outcome = log_->Append(id, bytes, id % 3 == 0);
    ASSERT_EQ(outcome.result, BlockResult::kOk);
    at[id] = outcome.location;
  }
  for (uint64_t id = 0; id < 100; id += 9) {
    ASSERT_EQ(log_->Erase(id, at[id]), BlockResult::kOk);
    at.erase(id);
  }
  for (bool close : {false, true}) {
    if (close) {
      ASSERT_TRUE(log_->log().Close().ok());
    }
    ASSERT_NO_FATAL_FAILURE(Restart());
    ASSERT_EQ(log_->recovered().size(), at.size());
    for (const auto& [id, location] : at) {
      ASSERT_EQ(log_->RecoveredAt(id), location);
      ASSERT_EQ(log_->Read(id, location), BlockResult::kOk);
    }
  }
  ASSERT_EQ(log_->Flush(), BlockResult::kOk);
  ASSERT_EQ(log_->Append(500, 1000, true).result, BlockResult::kOk);
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(log_->recovered().size(), 1u);
}

TEST_P(SegmentLogConformanceTest, WrapsAroundManyTimes) {
  std::map<uint64_t, DiskLocation> at;
  std::map<BlockKey, uint64_t> ids;
  for (uint64_t id = 0; id < 250; ++id) {
    const LogTester::Outcome outcome = log_->Append(id, 150'000, id % 50 == 0);
    ASSERT_EQ(outcome.result, BlockResult::kOk);
    at[id] = outcome.location;
    ids[testing::TestKey(id)] = id;
    for (const LogEvent& event : log_->TakeEvents()) {
      ASSERT_EQ(event.kind, LogEventKind::kReclaimed);
      at.erase(ids.at(event.key));
    }
  }
  log_->Settle();
  for (const LogEvent& event : log_->TakeEvents()) at.erase(ids.at(event.key));
  for (const auto& [id, location] : at) ASSERT_EQ(log_->Read(id, location), BlockResult::kOk);
  const size_t held = at.size();
  EXPECT_GT(held, 60u);
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(log_->recovered().size(), held);
  EXPECT_GT(log_->log().stats().capacity_bytes, kBytes - 2 * kSegment);
}

// Reads and appends at once, through registered memory, with more asked for than the device takes.
TEST_P(SegmentLogConformanceTest, ManyAtOnce) {
  constexpr uint64_t kPages = 48;
  constexpr uint32_t kPayload = 60'000;
  const uint64_t slot_bytes = PageSlotBytes(kPayload);
  log_->Drop();
  AlignedBuffer arena(2 * kPages * slot_bytes);
  const absl::Status registered = home_->device()->RegisterBuffers({arena.span()});
  ASSERT_TRUE(registered.ok() || absl::IsUnavailable(registered)) << registered;
  ASSERT_NO_FATAL_FAILURE(Open());
  std::vector<DiskLocation> at(kPages);
  for (uint64_t id = 0; id < kPages; ++id) {
    const MutableBytes slot = arena.span().subspan(id * slot_bytes, slot_bytes);
    testing::FillPage(id, kPayload, 1, slot);
    ASSERT_EQ(log_->Persist([&] { return log_->log().Append(slot, id % 4 == 0, id); }),
              BlockResult::kOk);
  }
  log_->Settle();
  for (const LogEvent& event : log_->TakeEvents()) {
    ASSERT_EQ(event.result, BlockResult::kOk);
    at[event.token] = event.location;
  }
  for (uint64_t id = 0; id < kPages; ++id) {
    const MutableBytes out = arena.span().subspan((kPages + id) * slot_bytes, slot_bytes);
    ASSERT_EQ(
        log_->Persist([&] { return log_->log().Read(testing::TestKey(id), at[id], out, id); }),
        BlockResult::kOk);
  }
  log_->Settle();
  EXPECT_EQ(log_->TakeEvents().size(), kPages);
  for (uint64_t id = 0; id < kPages; ++id) {
    EXPECT_TRUE(
        testing::IsExactPage(id, arena.span().subspan((kPages + id) * slot_bytes, slot_bytes)));
  }
  log_.reset();
  ASSERT_TRUE(home_->device()->RegisterBuffers({}).ok());
  ASSERT_NO_FATAL_FAILURE(Open());
}

INSTANTIATE_TEST_SUITE_P(All, SegmentLogConformanceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace crumb
