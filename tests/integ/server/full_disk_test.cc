// The real daemon on a volume that is full, becomes full by somebody else's doing, and gets room
// again. PROMISE: that means fewer stored pages and nothing else; it is counted, and said once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>

#include "cachesvc/base/clock.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/mounted_volume.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::DaemonProcess;
using testing::Eventually;
using testing::Got;
using ::testing::HasSubstr;
using testing::MountedVolume;
using testing::RandomPage;
using testing::RpcWorker;
using testing::RunResult;
using testing::SmallModel;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBackUsMax = 5'000'000;
constexpr char kFull[] = "is full";

class FullDiskTest : public ::testing::Test {
 protected:
  static std::unique_ptr<RpcWorker> WorkerOf(const DaemonProcess& daemon) {
    auto worker = std::make_unique<RpcWorker>(daemon.socket());
    EXPECT_TRUE(worker->Connect());
    const grpc::Status status = worker->Register(SmallModel(), "raw");
    EXPECT_TRUE(status.ok()) << status.error_message();
    return worker;
  }
  static double Metric(const DaemonProcess& daemon, const std::string& name) {
    const std::string text = testing::HttpBody(daemon.http(), "/metrics");
    const size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(at + name.size() + 2));
  }
  static int Count(const std::string& text, const std::string& what) {
    int count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++count;
    return count;
  }
  // Of pages put durably under first, first + 1, ...: all of them exact.
  static void ExpectAll(RpcWorker* worker, uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      const Got got = worker->Get(std::to_string(i));
      ASSERT_TRUE(got.ok()) << i << ": " << got.header.result();
      ASSERT_EQ(got.data, RandomPage(i)) << i;
    }
  }
  std::string data_dir() const { return "data_dir=" + temp_ / "volume/data"; }

  TempDir temp_{TempDir::Place::kDisk};
};

// Blocks of the file are the daemon's: what others do to the volume is nothing to it.
TEST_F(FullDiskTest, WhereRoomIsReservedAFullVolumeIsNotEvenNoticed) {
  MountedVolume volume(MountedVolume::Kind::kTmpfs, temp_ / "volume", 64 * kMiB);
  if (!volume.mounted()) GTEST_SKIP() << volume.why();
  DaemonProcess daemon(temp_.path(), {data_dir(), "nvme.bytes=20MiB"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  {
    const auto worker = WorkerOf(daemon);
    ASSERT_EQ(worker->Put("0", RandomPage(0), {.durable = true}), v1::RESULT_OK);
    ASSERT_TRUE(volume.Fill());
    for (uint64_t i = 1; i < 400; ++i) {  // more than the file holds
      ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    }
    ExpectAll(worker.get(), 330, 400);
    EXPECT_EQ(Metric(daemon, "crumb_nvme_errors_total{op=\"write\"}"), 0);
  }
  // Also a start finds no room for anything new, and needs none.
  daemon.Signal(SIGKILL);
  ASSERT_EQ(daemon.Wait(20'000).signal, SIGKILL);
  ASSERT_TRUE(volume.Fill());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  ExpectAll(worker.get(), 330, 400);
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
}

TEST_F(FullDiskTest, WithoutACapItTakesHalfOfWhatIsFreeAndACapOverThatIsRefused) {
  MountedVolume volume(MountedVolume::Kind::kTmpfs, temp_ / "volume", 640 * kMiB);
  if (!volume.mounted()) GTEST_SKIP() << volume.why();
  const std::string config = temp_ / "crumbd.yaml";
  const auto check = [&](const std::string& bytes) {
    std::vector<std::string> arguments = {"--check-config", "--set", data_dir()};
    if (!bytes.empty()) arguments.insert(arguments.end(), {"--set", "nvme.bytes=" + bytes});
    return testing::RunCrumbd(arguments);
  };
  const RunResult unset = check("");
  EXPECT_EQ(unset.ended.code, 0) << unset.err;
  EXPECT_THAT(unset.out, HasSubstr("bytes: 320MiB"));
  const RunResult over = check("641MiB");
  EXPECT_EQ(over.ended.code, 2) << over.err;
  EXPECT_THAT(over.err, HasSubstr("nvme.bytes"));
  EXPECT_THAT(over.err, HasSubstr("640MiB"));
  EXPECT_THAT(over.err, HasSubstr(volume.path()));
  ASSERT_TRUE(volume.Fill(16 * kMiB));
  const RunResult small = check("");
  EXPECT_EQ(small.ended.code, 0) << small.err;
  EXPECT_THAT(small.err + small.out, HasSubstr("no NVMe tier"));
}

TEST_F(FullDiskTest, AStartWithoutAnyRoomSaysWhatIsMissing) {
  MountedVolume volume(MountedVolume::Kind::kTmpfs, temp_ / "volume", 64 * kMiB);
  if (!volume.mounted()) GTEST_SKIP() << volume.why();
  ASSERT_TRUE(volume.Fill(64 * 1024));
  DaemonProcess daemon(temp_.path(), {data_dir(), "nvme.bytes=40MiB"});
  EXPECT_FALSE(daemon.Start());
  EXPECT_EQ(daemon.Wait(20'000).code, 2);
  EXPECT_THAT(daemon.log(), HasSubstr("nvme.bytes"));
  EXPECT_THAT(daemon.log(), HasSubstr(volume.path()));
  volume.Clear();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
}

// Where blocks cannot be reserved, writes meet the full volume.
class SparseDiskTest : public FullDiskTest {
 protected:
  void SetUp() override {
    volume_ =
        std::make_unique<MountedVolume>(MountedVolume::Kind::kExt2, temp_ / "volume", 64 * kMiB);
    if (!volume_->mounted()) GTEST_SKIP() << volume_->why();
    daemon_ = std::make_unique<DaemonProcess>(
        temp_.path(), std::vector<std::string>{data_dir(), "nvme.bytes=48MiB",
                                               "nvme.segment_bytes=2MiB", "pool.dram_bytes=8MiB"});
    ASSERT_TRUE(daemon_->Start()) << daemon_->log();
    ASSERT_THAT(daemon_->log(), HasSubstr("sparse"));
  }
  void TearDown() override { daemon_.reset(); }

  std::unique_ptr<MountedVolume> volume_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(SparseDiskTest, AFullVolumeMeansFewerStoredPagesUntilThereIsRoom) {
  const auto worker = WorkerOf(*daemon_);
  for (uint64_t i = 0; i < 150; ++i) {
    ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  ASSERT_TRUE(volume_->Fill());
  uint64_t refused = 0;
  for (uint64_t i = 1000; i < 1200; ++i) {
    const v1::Result result =
        worker->Put(std::to_string(i), RandomPage(i), {.durable = i % 2 == 0});
    ASSERT_TRUE(result == v1::RESULT_OK || result == v1::RESULT_NOT_DURABLE) << result;
    if (result == v1::RESULT_NOT_DURABLE) ++refused;
    const Got got = worker->Get(std::to_string(i));
    ASSERT_TRUE(got.ok()) << i;  // it lives in memory
    ASSERT_EQ(got.data, RandomPage(i));
  }
  EXPECT_GT(refused, 50u);
  EXPECT_GT(Metric(*daemon_, "crumb_nvme_errors_total{op=\"write\"}"), 0);
  EXPECT_GT(Metric(*daemon_, "crumb_nvme_no_space_total"), 0);
  EXPECT_TRUE(Eventually([&] { return Count(daemon_->log(), kFull) > 0; }, 5'000));
  EXPECT_THAT(worker->StatusJson(), HasSubstr(kFull));
  ExpectAll(worker.get(), 0, 150);
  // However often it is tried, what is stored stays.
  for (int i = 0; i < 12; ++i) {
    EXPECT_NE(worker->Put("x" + std::to_string(i), RandomPage(1), {.durable = true}),
              v1::RESULT_INVALID);
    testing::PauseMs(200);
  }
  ExpectAll(worker.get(), 0, 150);
  EXPECT_EQ(Count(daemon_->log(), kFull), 1) << daemon_->log();
  EXPECT_THAT(daemon_->log(), HasSubstr("make room"));

  volume_->Clear();
  const SteadyClock clock;
  const uint64_t since_us = clock.now_us();
  uint64_t key = 2000;
  EXPECT_TRUE(Eventually(
      [&] {
        ++key;
        return worker->Put(std::to_string(key), RandomPage(key), {.durable = true}) ==
               v1::RESULT_OK;
      },
      20'000));
  EXPECT_LE(clock.now_us() - since_us, kBackUsMax);
  for (uint64_t i = 3000; i < 3100; ++i) {
    ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  EXPECT_EQ(Metric(*daemon_, "crumb_nvme_enabled"), 1);
  EXPECT_TRUE(Eventually(
      [&] {
        ++key;
        return worker->Put(std::to_string(key), RandomPage(key), {.durable = true}) ==
                   v1::RESULT_OK &&
               worker->StatusJson().find(kFull) == std::string::npos;
      },
      20'000));
  EXPECT_EQ(Count(daemon_->log(), "has room again"), 1) << daemon_->log();
  ExpectAll(worker.get(), 0, 150);
  daemon_->Signal(SIGKILL);
  ASSERT_EQ(daemon_->Wait(20'000).signal, SIGKILL);
  ASSERT_TRUE(daemon_->Start()) << daemon_->log();
  const auto again = WorkerOf(*daemon_);
  ExpectAll(again.get(), 0, 150);
  ExpectAll(again.get(), 3000, 3100);
}

// What is stored is worth more than a full length: the next start takes the file as it is.
TEST_F(SparseDiskTest, ARestartOnAFullVolumeServesWhatIsThere) {
  {
    const auto worker = WorkerOf(*daemon_);
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    }
  }
  ASSERT_TRUE(volume_->Fill());
  daemon_->Signal(SIGKILL);
  ASSERT_EQ(daemon_->Wait(20'000).signal, SIGKILL);
  ASSERT_TRUE(volume_->Fill());
  ASSERT_TRUE(daemon_->Start()) << daemon_->log();
  const auto worker = WorkerOf(*daemon_);
  ExpectAll(worker.get(), 0, 100);
  volume_->Clear();
  uint64_t key = 2000;
  EXPECT_TRUE(Eventually(
      [&] {
        ++key;
        return worker->Put(std::to_string(key), RandomPage(key), {.durable = true}) ==
               v1::RESULT_OK;
      },
      5'000));
}

}  // namespace
}  // namespace crumb
