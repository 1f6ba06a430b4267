// crumbctl bench --device: all of its steps against a real crumbd, with a worker whose "GPU" is
// host memory; then what it says where there is none.
#include "client/cli/bench_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/cli.h"
#include "tests/support/child_daemon.h"

namespace crumb::cli {
namespace {

using testing::HasSubstr;

class HostLoad final : public GpuLoad {
 public:
  uint64_t kernels() const override { return ++kernels_ * 100; }
  double kernel_us() const override { return 10; }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  mutable uint64_t kernels_ = 0;
};

// Damages what is copied out from the `damage`th copy on.
class HostWorker final : public GpuWorker {
 public:
  explicit HostWorker(uint64_t damage) : damage_(damage) {}
  std::string name() const override { return "host"; }
  bool on_host() const override { return true; }
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    return memory_.emplace_back(bytes).data();
  }
  absl::Status CopyIn(void* to, const void* from_host, uint64_t bytes) override {
    std::memcpy(to, from_host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to_host, const void* from, uint64_t bytes) override {
    std::memcpy(to_host, from, bytes);
    if (++copies_ >= damage_) std::memset(to_host, 0x3f, bytes);
    return absl::OkStatus();
  }
  absl::Status Fill(void* memory, uint8_t value, uint64_t bytes) override {
    std::memset(memory, value, bytes);
    return absl::OkStatus();
  }
  void* stream() const override { return nullptr; }
  absl::StatusOr<std::unique_ptr<GpuLoad>> StartLoad() override {
    return std::make_unique<HostLoad>();
  }

 private:
  const uint64_t damage_;
  uint64_t copies_ = 0;
  std::vector<std::vector<std::byte>> memory_;
};

class BenchDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(dir_.path() + "/crumbd.yaml")
        << "data_dir: " << dir_.path() << "/data\n"
        << "listen: {grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: " << dir_.path() << "/s}\n"
        << "pool: {dram_bytes: 64MiB}\nnvme: {bytes: 64MiB, segment_bytes: 4MiB}\n"
        << "codec: {int2: accept, windows: off}\nlog: {level: warning}\n";
    auto daemon = ChildDaemon::Spawn({.program = std::getenv("CRUMBD"),
                                      .config_file = dir_.path() + "/crumbd.yaml",
                                      .log_file = dir_.path() + "/log"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    ASSERT_TRUE(daemon_->WaitReady(60'000).ok());
    globals_.server = "unix:" + dir_.path() + "/s";
    globals_.deadline_ms = 20'000;
    globals_.json = true;
    args_.device = 0;
    args_.layers = 3;
    args_.heads = 2;
    args_.dim = 64;
    args_.page_tokens = 32;
    args_.batch = 4;
    args_.batches = 6;
  }
  int Bench() {
    out_.str("");
    err_.str("");
    Context context{.globals = globals_, .out = out_, .err = err_};
    BenchDevice(&context, args_, [this](int device) -> absl::StatusOr<std::unique_ptr<GpuWorker>> {
      if (device > 1) return absl::InvalidArgumentError("no such device");
      return std::make_unique<HostWorker>(damage_);
    });
    return context.exit;
  }
  nlohmann::json Document() { return nlohmann::json::parse(out_.str()); }

  ScratchDir dir_;
  std::unique_ptr<ChildDaemon> daemon_;
  Globals globals_;
  DeviceArgs args_;
  uint64_t damage_ = UINT64_MAX;
  std::ostringstream out_, err_;
};

TEST_F(BenchDeviceTest, LossyPagesAreWhatTheReferenceMakes) {
  for (const char* codec : {"oscar-int2", "crumb-int2", "crumb-int4", "hadamard-int2"}) {
    args_.codec = codec;
    args_.depth = 3;
    ASSERT_EQ(Bench(), kExitOk) << codec << err_.str();
    const nlohmann::json document = Document();
    EXPECT_EQ(document["codec"], codec);
    EXPECT_EQ(document["raw_page_bytes"], 3 * 2 * 2 * 32 * 64 * 2);
    for (const char* phase : {"put", "get"}) {
      EXPECT_EQ(document[phase]["batches"], 6) << document;
      EXPECT_EQ(document[phase]["pages"], 24);
      EXPECT_GT(document[phase]["bf16_bytes_per_second"], 0.0);
      EXPECT_GT(document[phase]["tokens_per_second"], 0.0);
      EXPECT_GE(document[phase]["p99_us"], document[phase]["p50_us"]);
      EXPECT_TRUE(document[phase]["failures"].empty());
      EXPECT_TRUE(document[phase]["worker"].is_null());
      const char* const precision = codec == std::string("crumb-int4") ? "int4" : "int2";
      EXPECT_EQ(document[phase]["precisions"].value(precision, 0), 24) << document[phase];
    }
    EXPECT_EQ(document["check"]["pages"], 4);
    EXPECT_EQ(document["check"]["wrong"], 0) << document["check"];
  }
}

TEST_F(BenchDeviceTest, RawPagesAreEqualAndAPeerGetsOverItsOwnConnection) {
  args_.codec = "raw";
  args_.peer = 1;
  args_.rate = 500;
  ASSERT_EQ(Bench(), kExitOk) << err_.str();
  const nlohmann::json document = Document();
  EXPECT_EQ(document["put"]["device"], 0);
  EXPECT_EQ(document["get"]["device"], 1);
  EXPECT_EQ(document["check"]["exact"], 4);
  EXPECT_GE(document["get"]["seconds"], 5.0 / 500);  // six batches, 2 ms apart
  EXPECT_EQ(document["get"]["precisions"]["raw"], 24);
  // Nothing is left behind.
  std::ostringstream out, err;
  RunCrumbctl({"--server", globals_.server, "--json", "status"}, out, err);
  EXPECT_EQ(nlohmann::json::parse(out.str())["tiers"]["dram"]["pages"], 0) << out.str();
}

TEST_F(BenchDeviceTest, ALoadIsCountedAndTextSaysIt) {
  args_.codec = "int4";
  args_.kernel_load = true;
  globals_.json = false;
  ASSERT_EQ(Bench(), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("kernels/s alone"));
  EXPECT_THAT(out_.str(), HasSubstr("beside a load of kernels"));
  EXPECT_THAT(out_.str(), HasSubstr("check: 4 pages"));
}

TEST_F(BenchDeviceTest, PagesThatComeBackWrongAreSaid) {
  for (const char* codec : {"raw", "int4"}) {
    args_.codec = codec;
    damage_ = 1;
    EXPECT_EQ(Bench(), kExitFailed);
    EXPECT_THAT(err_.str(), HasSubstr("pages came back wrong"));
    EXPECT_EQ(Document()["check"]["wrong"], 4);
  }
}

TEST_F(BenchDeviceTest, WhatCannotBeMeasuredIsNamed) {
  args_.block_tokens = 24;
  EXPECT_EQ(Bench(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--block-tokens 24 must divide"));
  args_.block_tokens = 16;
  args_.layers = 1024;
  args_.heads = 256;
  EXPECT_EQ(Bench(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("lower --layers"));
  args_.layers = args_.heads = 2;
  args_.codec = "int3";
  EXPECT_EQ(Bench(), kExitUsage);
  args_.codec = "raw";
  args_.device = 2;
  EXPECT_EQ(Bench(), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("no such device"));
}

TEST(BenchDeviceCommand, OptionsAndVerbsDoNotMix) {
  const auto run = [](const std::vector<std::string>& args, std::string* err) {
    std::ostringstream out, words;
    const int exit = RunCrumbctl(args, out, words);
    *err = words.str();
    return exit;
  };
  std::string err;
  EXPECT_EQ(run({"bench"}, &err), kExitUsage);
  EXPECT_THAT(err, HasSubstr("--device N"));
  EXPECT_EQ(run({"bench", "--device", "0", "get"}, &err), kExitUsage);
  EXPECT_EQ(run({"bench", "--layers", "3"}, &err), kExitUsage);
  EXPECT_EQ(run({"bench", "--device", "x"}, &err), kExitUsage);
  EXPECT_THAT(err, HasSubstr("nvidia-smi -L"));
  EXPECT_EQ(run({"bench", "--device", "0", "--peer-device", "-1"}, &err), kExitUsage);
}

}  // namespace
}  // namespace crumb::cli
