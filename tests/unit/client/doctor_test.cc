// Host checks over made-up hosts.
#include "client/cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace crumb::cli {
namespace {

using testing::HasSubstr;

class Host : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/crumb-doctor-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    dir_ = path;
    paths_ = {.proc = dir_ + "/proc", .sys = dir_ + "/sys"};
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full(dir_ + path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  std::string dir_;
  HostPaths paths_;
};

TEST(Kernel, VersionsAreJudged) {
  EXPECT_EQ(CheckKernel("6.1.0-13-amd64").level, Level::kOk);
  EXPECT_EQ(CheckKernel("5.10.0").level, Level::kOk);
  EXPECT_EQ(CheckKernel("5.4.1").level, Level::kWarn);
  EXPECT_EQ(CheckKernel("4.19.0").level, Level::kFail);
  EXPECT_EQ(CheckKernel("strange").level, Level::kWarn);
  EXPECT_FALSE(CheckKernel("4.19.0").remedy.empty());
  EXPECT_FALSE(CheckKernel("4.19.0").hint.empty());
}

TEST(Limits, AreJudged) {
  EXPECT_EQ(CheckMemlock(8 << 20).level, Level::kWarn);
  EXPECT_EQ(CheckMemlock(64 << 20).level, Level::kOk);
  EXPECT_EQ(CheckMemlock(~0ull).text, "unlimited");
  EXPECT_EQ(CheckOpenFiles(1024).level, Level::kWarn);
  EXPECT_EQ(CheckOpenFiles(65536).level, Level::kOk);
}

TEST_F(Host, HugepagesReservedTransparentOrNeither) {
  EXPECT_EQ(CheckHugepages(paths_).level, Level::kWarn);
  Write("/proc/meminfo", "MemTotal: 5 kB\nHugePages_Total:       0\nHugepagesize:    2048 kB\n");
  EXPECT_EQ(CheckHugepages(paths_).level, Level::kWarn);
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(CheckHugepages(paths_).level, Level::kOk);
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(CheckHugepages(paths_).level, Level::kWarn);
  Write("/proc/meminfo", "HugePages_Total:     512\nHugepagesize:    2048 kB\n");
  EXPECT_EQ(CheckHugepages(paths_).level, Level::kOk);
  EXPECT_THAT(CheckHugepages(paths_).text, HasSubstr("512 of 2048 KiB"));
}

TEST_F(Host, CgroupLimitsOfThisProcess) {
  EXPECT_EQ(CheckCgroup(paths_).text, "memory unlimited, CPU unlimited");
  Write("/proc/self/cgroup", "0::/my/slice\n");
  Write("/sys/fs/cgroup/my/slice/memory.max", "104857600\n");
  Write("/sys/fs/cgroup/my/slice/cpu.max", "50000 100000\n");
  EXPECT_EQ(CheckCgroup(paths_).level, Level::kFail);
  EXPECT_EQ(CheckCgroup(paths_).text, "memory 100.00 MiB, CPU 0.50 cores");
  Write("/sys/fs/cgroup/my/slice/memory.max", "4294967296\n");
  EXPECT_EQ(CheckCgroup(paths_).level, Level::kWarn);
  Write("/sys/fs/cgroup/my/slice/cpu.max", "max 100000\n");
  EXPECT_EQ(CheckCgroup(paths_).level, Level::kOk);
}

TEST_F(Host, SlowClocksAreNamed) {
  Write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  EXPECT_NE(CheckClock(paths_).level, Level::kOk);
  EXPECT_THAT(CheckClock(paths_).text, HasSubstr("hpet"));
}

TEST_F(Host, ADataDirectoryThatCannotHoldAFileFails) {
  const auto checks = CheckDataDir(dir_ + "/absent");
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].level, Level::kFail);
  EXPECT_THAT(checks[0].hint, HasSubstr("install -d"));
}

TEST_F(Host, ADataDirectoryIsMeasuredAndLeftEmpty) {
  const auto checks = CheckDataDir(dir_);
  ASSERT_EQ(checks.size(), 3u);
  EXPECT_THAT(checks[2].text, HasSubstr("write "));
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST(Cuda, NoDriverIsFineAndAFalseOneIsNot) {
  EXPECT_EQ(CheckCuda("libcrumb-no-such-library.so").level, Level::kOk);
  EXPECT_EQ(CheckCuda("libm.so.6").level, Level::kFail);
}

TEST(Doctor, TheGpuOfADaemonIsLookedAtBesideTheHosts) {
  const Check none{.name = "CUDA", .text = "no driver on this host"};
  const Check found{.name = "CUDA", .text = "driver for CUDA 13.0; 0: NVIDIA H200 141 GiB"};
  const std::string off = R"({"gpu":{"enabled":false,"description":"off: built without CUDA"}})";
  EXPECT_EQ(CheckDaemonGpu(off, none).level, Level::kOk);
  EXPECT_EQ(CheckDaemonGpu(off, found).level, Level::kWarn);
  EXPECT_THAT(CheckDaemonGpu(off, found).remedy, HasSubstr("a build with CUDA"));
  const std::string meant =
      R"({"gpu":{"enabled":false,"description":"off: gpu.enabled is false"}})";
  EXPECT_EQ(CheckDaemonGpu(meant, found).level, Level::kOk);
  const std::string on = R"({"gpu":{"enabled":true,"description":"GPU 0","hbm":"20 GiB"}})";
  EXPECT_EQ(CheckDaemonGpu(on, found).level, Level::kOk);
  EXPECT_EQ(CheckDaemonGpu(on, found).text, "GPU 0; HBM tier: 20 GiB");
  const Check lost = CheckDaemonGpu(R"({"gpu":{"fault":"a GPU is lost"}})", found);
  EXPECT_EQ(lost.level, Level::kFail);
  EXPECT_FALSE(lost.remedy.empty());
  for (const char* odd : {"", "[]", "{}", R"({"gpu":3})", R"({"gpu":{"enabled":"yes"}})"}) {
    EXPECT_EQ(CheckDaemonGpu(odd, none).level, Level::kOk) << odd;
  }
}

TEST(Uring, SaysWhetherARingWorks) {
  const Check check = CheckUring();
  EXPECT_NE(check.level, Level::kFail);
  EXPECT_EQ(check.level == Level::kOk, check.remedy.empty());
}

TEST(MappedMemory, WhatAWorkerLendsCanBeMappedHere) {
  EXPECT_EQ(CheckMappedMemory().level, Level::kOk);
}

TEST(Shm, AMissingMountIsAWarning) { EXPECT_EQ(CheckShm("/nonexistent/shm").level, Level::kWarn); }

}  // namespace
}  // namespace crumb::cli
