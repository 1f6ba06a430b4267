// A GPU that is lost under a daemon, as processes: it says so, drains, ends with a code of its own
// and names the GPU; the next start serves what was durable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "cachesvc/server/app.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/support/child_daemon.h"

namespace crumb {
namespace {

using ::testing::HasSubstr;

class LostGpu : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return scratch_.path() + "/" + name; }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  absl::Status Start() {
    std::ofstream(Path("crumbd.yaml"))
        << "data_dir: " << Path("data")
        << "\nlisten:\n  grpc: off\n  http: 127.0.0.1:0\n  socket: " << Path("crumbd.sock")
        << "\npool:\n  dram_bytes: 32MiB\n  hbm_bytes: 64MiB\n"
        << "nvme:\n  bytes: 64MiB\n  segment_bytes: 4MiB\nucx:\n  enabled: false\n";
    const char* program = std::getenv("CRUMBD");
    if (program == nullptr) return absl::NotFoundError("CRUMBD names no daemon");
    CRUMB_ASSIGN(daemon_, ChildDaemon::Spawn({.program = program,
                                              .config_file = Path("crumbd.yaml"),
                                              .log_file = Path("log")}));
    return daemon_->WaitReady(30'000);
  }

  ScratchDir scratch_;
  std::unique_ptr<ChildDaemon> daemon_;
};

TEST_F(LostGpu, EndsTheDaemonAndTheNextOneServesWhatWasDurable) {
  ASSERT_EQ(setenv("CRUMB_HOST_GPU_LOST", Path("lost").c_str(), 1), 0);
  ASSERT_TRUE(Start().ok()) << Read("log");
  EXPECT_THAT(Read("log"), HasSubstr("GPU 0 host memory"));
  const std::string page = testing::RandomPage(3);
  {
    testing::RpcWorker worker("unix:" + daemon_->socket());
    ASSERT_TRUE(worker.Connect());
    ASSERT_TRUE(worker.Register(testing::SmallModel(), "raw").ok());
    ASSERT_EQ(worker.Put("kept", page, {.durable = true}), v1::RESULT_OK);
  }
  std::ofstream(Path("lost")) << "now\n";
  const int status = daemon_->Wait(30'000);
  ASSERT_TRUE(WIFEXITED(status)) << status << "\n" << Read("log");
  EXPECT_EQ(WEXITSTATUS(status), kExitGpu) << Read("log");
  EXPECT_THAT(Read("log"), HasSubstr("crumbd: a GPU is lost, the process has to end: GPU 0"));
  EXPECT_THAT(Read("log"), HasSubstr("draining"));

  // It does not start where it is told to use what is not there, nor is anything lost by trying.
  EXPECT_FALSE(Start().ok());
  EXPECT_EQ(WEXITSTATUS(daemon_->Wait(10'000)), kExitConfig) << Read("log");
  ASSERT_EQ(unlink(Path("lost").c_str()), 0);
  ASSERT_TRUE(Start().ok()) << Read("log");
  testing::RpcWorker worker("unix:" + daemon_->socket());
  ASSERT_TRUE(worker.Connect());
  ASSERT_TRUE(worker.Register(testing::SmallModel(), "raw").ok());
  const testing::Got got = worker.Get("kept");
  ASSERT_TRUE(got.ok()) << got.status.error_message();
  EXPECT_EQ(got.data, page);
}

}  // namespace
}  // namespace crumb
