// The NVMe tier of the real daemon: another size while it serves, kills in the middle of that, what
// SIGTERM saves, a file that disappears, a volume that fills up.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/rng.h"
#include "tests/integ/server/daemon_process.h"
#include "tests/integ/server/rpc_worker.h"
#include "tests/unit/cachesvc/server/temp_dir.h"

namespace crumb {
namespace {

using testing::Context;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Got;
using ::testing::HasSubstr;
using testing::RandomPage;
using testing::RpcWorker;
using testing::SmallModel;

constexpr uint64_t kMiB = 1 << 20;

class NvmeTest : public ::testing::Test {
 protected:
  static std::unique_ptr<RpcWorker> WorkerOf(const DaemonProcess& daemon) {
    auto worker = std::make_unique<RpcWorker>(daemon.socket());
    EXPECT_TRUE(worker->Connect());
    EXPECT_TRUE(worker->Register(SmallModel(), "raw").ok());
    return worker;
  }
  static grpc::Status Resize(RpcWorker* worker, uint64_t bytes,
                             v1::ResizeNvmeReply* reply = nullptr) {
    v1::ResizeNvmeRequest request;
    request.set_bytes(bytes);
    v1::ResizeNvmeReply ignored;
    return worker->admin().ResizeNvme(Context(60'000).get(), request,
                                      reply != nullptr ? reply : &ignored);
  }
  uint64_t FileBytes() const { return std::filesystem::file_size(file_); }
  static double Metric(const DaemonProcess& daemon, const std::string& name) {
    const std::string text = testing::HttpBody(daemon.http(), "/metrics");
    const size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(at + name.size() + 2));
  }

  TempDir temp_{TempDir::Place::kDisk};
  const std::string file_ = temp_ / "data/nvme/pages.log";
};

TEST_F(NvmeTest, TheTierGrowsAndShrinksWhileItServes) {
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=32MiB", "nvme.segment_bytes=2MiB"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  v1::ResizeNvmeReply reply;
  ASSERT_TRUE(Resize(worker.get(), 64 * kMiB, &reply).ok());
  EXPECT_EQ(reply.bytes(), 64 * kMiB);
  EXPECT_EQ(reply.bytes_before(), 32 * kMiB);
  EXPECT_EQ(reply.configured_bytes(), 32 * kMiB);
  EXPECT_EQ(FileBytes(), 64 * kMiB);
  EXPECT_GT(Metric(daemon, "crumb_tier_capacity_bytes{tier=\"nvme\"}"), 60.0 * kMiB);
  for (uint64_t i = 100; i < 300; ++i) {
    ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
  }
  for (uint64_t i = 0; i < 300; ++i) {
    ASSERT_EQ(worker->Get(std::to_string(i)).data, RandomPage(i)) << i;
  }
  const grpc::Status shrunk = Resize(worker.get(), 16 * kMiB, &reply);
  ASSERT_TRUE(shrunk.ok()) << shrunk.error_message();
  EXPECT_EQ(FileBytes(), 16 * kMiB);
  EXPECT_LT(Metric(daemon, "crumb_tier_capacity_bytes{tier=\"nvme\"}"), 16.0 * kMiB);
  EXPECT_LE(Metric(daemon, "crumb_tier_used_bytes{tier=\"nvme\"}"), 16.0 * kMiB);
  uint64_t hits = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const Got got = worker->Get(std::to_string(i));
    if (!got.ok()) continue;
    ASSERT_EQ(got.data, RandomPage(i)) << i;
    ++hits;
  }
  EXPECT_GT(hits, 100u);
  // The configuration's size is there again after a start.
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_EQ(FileBytes(), 32 * kMiB);
}

TEST_F(NvmeTest, WhatCannotBeChangesNothing) {
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=32MiB", "nvme.segment_bytes=2MiB"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  ASSERT_EQ(worker->Put("k", RandomPage(1), {.durable = true}), v1::RESULT_OK);
  const grpc::Status small = Resize(worker.get(), 7 * kMiB);
  EXPECT_EQ(small.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(small.error_message(), HasSubstr("segments"));
  const grpc::Status large = Resize(worker.get(), uint64_t{1} << 50);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << large.error_message();
  EXPECT_THAT(large.error_message(), HasSubstr("make room"));
  EXPECT_EQ(FileBytes(), 32 * kMiB);
  EXPECT_EQ(worker->Get("k").data, RandomPage(1));
}

TEST_F(NvmeTest, WithoutATierThereIsNothingToResize) {
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=0"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  const grpc::Status status = Resize(worker.get(), 64 * kMiB);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("nvme.bytes"));
}

// Puts and deletes by several clients while the size changes, then SIGKILL at some moment.
// PROMISE: what comes back is exact; what was deleted does not; a start always works.
TEST_F(NvmeTest, KillsWhileItIsResizedUnderLoad) {
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=32MiB", "nvme.segment_bytes=1MiB"});
  Rng rng(7);
  std::mutex mutex;
  std::map<uint64_t, bool> deleted;  // keys whose put was answered; true: delete answered
  uint64_t next = 0;
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    EXPECT_EQ(FileBytes(), 32 * kMiB);
    {
      const auto reader = WorkerOf(daemon);
      uint64_t hits = 0;
      for (const auto& [key, gone] : deleted) {
        const Got got = reader->Get(std::to_string(key));
        if (!got.ok()) continue;
        ++hits;
        ASSERT_EQ(got.data, RandomPage(key)) << key;
        ASSERT_FALSE(gone) << key << " was deleted";
      }
      EXPECT_TRUE(round == 0 || hits > 0);
    }
    std::atomic<bool> stop = false;
    std::vector<std::thread> clients;
    for (int i = 0; i < 2; ++i) {
      const uint64_t first = next;
      next += 100'000;
      clients.emplace_back([&, first] {
        const auto worker = WorkerOf(daemon);
        for (uint64_t key = first; !stop; ++key) {
          if (worker->Put(std::to_string(key), RandomPage(key), {.durable = true}) !=
              v1::RESULT_OK) {
            continue;
          }
          const bool kill = key % 5 == 0;
          const bool gone = kill && worker->Delete(std::to_string(key)) == v1::RESULT_OK;
          const std::lock_guard<std::mutex> lock(mutex);
          if (!kill || gone) deleted[key] = gone;
        }
      });
    }
    const auto admin = WorkerOf(daemon);
    const uint64_t changes = 1 + rng.Below(5);
    for (uint64_t i = 0; i < changes; ++i) {
      const grpc::Status status = Resize(admin.get(), (8 + rng.Below(40)) * kMiB);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    std::thread last([&] { (void)Resize(admin.get(), (8 + rng.Below(40)) * kMiB); });
    testing::PauseMs(static_cast<int>(rng.Below(60)));
    daemon.Signal(SIGKILL);
    EXPECT_EQ(daemon.Wait(20'000).signal, SIGKILL);
    stop = true;
    last.join();
    for (std::thread& client : clients) client.join();
  }
}

// The tombstone lies behind the new end, the page in front of it.
TEST_F(NvmeTest, ALowerSizeInTheConfigurationBringsNothingBack) {
  {
    DaemonProcess daemon(temp_.path(), {"nvme.bytes=32MiB", "nvme.segment_bytes=1MiB"});
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    const auto worker = WorkerOf(daemon);
    for (uint64_t i = 0; i < 300; ++i) {
      ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i), {.durable = true}), v1::RESULT_OK);
    }
    ASSERT_EQ(worker->Delete("50"), v1::RESULT_OK);
    daemon.Signal(SIGKILL);
    EXPECT_EQ(daemon.Wait(20'000).signal, SIGKILL);
  }
  DaemonProcess daemon(temp_.path(), {"nvme.bytes=8MiB", "nvme.segment_bytes=1MiB"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_EQ(FileBytes(), 8 * kMiB);
  const auto worker = WorkerOf(daemon);
  EXPECT_EQ(worker->Get("50").header.result(), v1::RESULT_MISS);
  EXPECT_TRUE(worker->Get("51").data == RandomPage(51));  // beside it
  EXPECT_EQ(worker->Get("299").header.result(), v1::RESULT_MISS);
}

TEST_F(NvmeTest, SigtermSavesWhatLivesInMemoryAlone) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  {
    const auto worker = WorkerOf(daemon);
    for (uint64_t i = 0; i < 20; ++i) {
      ASSERT_EQ(worker->Put(std::to_string(i), RandomPage(i)), v1::RESULT_OK);
    }
  }
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  for (uint64_t i = 0; i < 20; ++i) {
    const Got got = worker->Get(std::to_string(i));
    EXPECT_EQ(got.data, RandomPage(i)) << i;
    EXPECT_EQ(got.header.tier(), v1::TIER_NVME) << i;
  }
}

TEST_F(NvmeTest, SigtermSavesNothingWhereThatIsSwitchedOff) {
  DaemonProcess daemon(temp_.path(), {"shutdown.save=false"});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  {
    const auto worker = WorkerOf(daemon);
    ASSERT_EQ(worker->Put("memory", RandomPage(1)), v1::RESULT_OK);
    ASSERT_EQ(worker->Put("durable", RandomPage(2), {.durable = true}), v1::RESULT_OK);
  }
  ASSERT_EQ(daemon.Stop().code, 0) << daemon.log();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  EXPECT_EQ(worker->Get("memory").header.result(), v1::RESULT_MISS);
  EXPECT_EQ(worker->Get("durable").data, RandomPage(2));
}

TEST_F(NvmeTest, AFileThatIsDeletedBehindItsBackPromisesNothingAndServesOn) {
  DaemonProcess daemon(temp_.path());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  {
    const auto worker = WorkerOf(daemon);
    ASSERT_EQ(worker->Put("before", RandomPage(1), {.durable = true}), v1::RESULT_OK);
    ASSERT_TRUE(std::filesystem::remove(file_));
    EXPECT_EQ(worker->Put("after", RandomPage(2), {.durable = true}), v1::RESULT_NOT_DURABLE);
    EXPECT_EQ(worker->Put("memory", RandomPage(3)), v1::RESULT_OK);
    EXPECT_EQ(worker->Get("before").data, RandomPage(1));
    EXPECT_EQ(worker->Get("memory").data, RandomPage(3));
    EXPECT_GT(Metric(daemon, "crumb_nvme_errors_total{op=\"write\"}"), 0);
  }
  daemon.Stop();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto worker = WorkerOf(daemon);
  EXPECT_EQ(worker->Get("before").header.result(), v1::RESULT_MISS);
  EXPECT_EQ(worker->Put("again", RandomPage(4), {.durable = true}), v1::RESULT_OK);
}

// Robustness: one leak per crash would fill the disk.
TEST_F(NvmeTest, KillsLeaveNoFilesBehind) {
  DaemonProcess daemon(temp_.path());
  Rng rng(11);
  uint64_t key = 0;
  for (int round = 0; round < 8; ++round) {
    ASSERT_TRUE(daemon.Start()) << daemon.log();
    const auto worker = WorkerOf(daemon);
    for (int i = 0; i < 5; ++i, ++key) {
      EXPECT_EQ(worker->Put(std::to_string(key), RandomPage(key), {.durable = i == 0}),
                v1::RESULT_OK);
    }
    testing::PauseMs(static_cast<int>(rng.Below(50)));
    daemon.Signal(SIGKILL);
    EXPECT_EQ(daemon.Wait(20'000).signal, SIGKILL);
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(temp_ / "data/nvme")) {
      names.insert(entry.path().filename().string());
    }
    EXPECT_EQ(names, std::set<std::string>{"pages.log"});
    EXPECT_EQ(FileBytes(), 64 * kMiB);
  }
}

}  // namespace
}  // namespace crumb
