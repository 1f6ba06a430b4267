// The real daemon over two places, one of which is cut or goes away while it serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::DaemonProcess;
using testing::Eventually;
using testing::Got;
using ::testing::HasSubstr;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;

constexpr uint64_t kPages = 240;

class StripeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b"}) std::filesystem::create_directories(temp_ / name);
    daemon_ = std::make_unique<DaemonProcess>(
        temp_.path(), std::vector<std::string>{"nvme.path=" + (temp_ / "a") + "," + (temp_ / "b")});
  }
  static std::unique_ptr<RpcWorker> WorkerOf(const DaemonProcess& daemon) {
    auto worker = std::make_unique<RpcWorker>(daemon.socket());
    EXPECT_TRUE(worker->Connect());
    EXPECT_TRUE(worker->Register(SmallModel(), "raw").ok());
    return worker;
  }
  static double Metric(const DaemonProcess& daemon, const std::string& name) {
    const std::string text = testing::HttpBody(daemon.http(), "/metrics");
    const size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(at + name.size() + 2));
  }
  // Pages that lie on disk alone.
  void Store() {
    ASSERT_TRUE(daemon_->Start()) << daemon_->log();
    const auto worker = WorkerOf(*daemon_);
    for (uint64_t i = 0; i < kPages; ++i) {
      ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    }
    daemon_->Signal(SIGKILL);
    ASSERT_EQ(daemon_->Wait(20'000).signal, SIGKILL);
    ASSERT_TRUE(daemon_->Start()) << daemon_->log();
  }

  TempDir temp_{TempDir::Place::kDisk};
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(StripeTest, AMemberThatIsCutCostsItsOwnPagesAlone) {
  Store();
  std::filesystem::resize_file(temp_ / "b/pages.log", 0);
  const auto worker = WorkerOf(*daemon_);
  uint64_t hits = 0;
  for (uint64_t i = 0; i < kPages; ++i) {
    const Got got = worker->Get(std::to_string(i));
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    if (got.ok()) {
      ASSERT_EQ(got.data, RandomPage(i)) << i;
      ++hits;
    } else {
      ASSERT_EQ(got.header.result(), v1::RESULT_MISS) << i;
    }
  }
  EXPECT_GT(hits, kPages / 4);
  EXPECT_LT(hits, kPages);
  EXPECT_GT(Metric(*daemon_, "crumb_nvme_errors_total{op=\"read\"}"), 0);
  EXPECT_THAT(testing::Http(daemon_->http(), "GET", "/readyz"), HasSubstr("200"));
  // The tier says that it is off, if it is, and comes back by itself.
  if (Metric(*daemon_, "crumb_nvme_enabled") == 0) {
    EXPECT_THAT(worker->StatusJson(), HasSubstr("check the disk"));
  }
  uint64_t key = 1000;
  EXPECT_TRUE(Eventually(
      [&] {
        ++key;
        return worker->Put(std::to_string(key), RandomPage(key), {.durable = true}) ==
               v1::RESULT_OK;
      },
      20'000));
  const Got got = worker->Get(std::to_string(key));
  EXPECT_EQ(got.data, RandomPage(key));
}

// A disk that is gone at the next start stops it: what is on the others is not given up in silence.
TEST_F(StripeTest, TheNextStartWithoutAMemberIsRefusedAndNamesIt) {
  Store();
  ASSERT_TRUE(std::filesystem::remove(temp_ / "b/pages.log"));
  const auto worker = WorkerOf(*daemon_);
  for (uint64_t i = 0; i < kPages; ++i) {  // open files go on
    const Got got = worker->Get(std::to_string(i));
    ASSERT_TRUE(got.ok()) << i;
    ASSERT_EQ(got.data, RandomPage(i)) << i;
  }
  uint64_t refused = 0;  // those that touch it
  for (uint64_t i = 1000; i < 1040; ++i) {
    const v1::Result result = worker->Put(std::to_string(i), RandomPage(i), {.durable = true});
    ASSERT_TRUE(result == v1::RESULT_OK || result == v1::RESULT_NOT_DURABLE) << result;
    if (result == v1::RESULT_NOT_DURABLE) ++refused;
  }
  EXPECT_GT(refused, 0u);
  daemon_->Signal(SIGKILL);
  ASSERT_EQ(daemon_->Wait(20'000).signal, SIGKILL);
  const auto before = std::filesystem::last_write_time(temp_ / "a/pages.log");
  EXPECT_FALSE(daemon_->Start());
  EXPECT_EQ(daemon_->Wait(20'000).code, 2);
  EXPECT_THAT(daemon_->log(), HasSubstr(temp_ / "b"));
  EXPECT_EQ(std::filesystem::last_write_time(temp_ / "a/pages.log"), before);
  std::filesystem::remove(temp_ / "a/pages.log");
  ASSERT_TRUE(daemon_->Start()) << daemon_->log();
  const auto again = WorkerOf(*daemon_);
  EXPECT_EQ(again->Get("0").header.result(), v1::RESULT_MISS);
}

}  // namespace
}  // namespace crumb
