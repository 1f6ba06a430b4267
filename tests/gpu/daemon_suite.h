// What the tests of crumbd and its workers on a GPU have in common, on a GPU (cuda_daemon_test) and
// over host memory (host_gpu_daemon_test). One thread.
#ifndef CRUMB_TESTS_GPU_DAEMON_SUITE_H_
#define CRUMB_TESTS_GPU_DAEMON_SUITE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu_rig.h"
#include "tests/support/codec_sample.h"

namespace crumb {

// Of the SmolLM2 sample, 144 KiB a page.
inline constexpr cli::DeviceShape kSample = {
    .layers = 3, .heads = testing::kSampleHeads, .dim = testing::kSampleDim};
inline constexpr uint32_t kSamplePages = testing::kSampleTokens / 64;

// How much a program has time for; each defines it.
struct SuiteSize {
  cli::DeviceShape large;  // pages that fill a pool
  GpuDaemon::Options daemon;
  uint32_t fill_batches = 40;  // of eight pages: more than the HBM pool takes
  int kills = 300, kill_seconds = 40;
};
SuiteSize SizeOfSuite();

#define ASSERT_OK(expression)                               \
  do {                                                      \
    const absl::Status status_ = (expression);              \
    ASSERT_TRUE(status_.ok()) << status_ << "\n" << Tail(); \
  } while (false)

// Memory of a worker, lent as contiguous pages.
struct Contiguous {
  std::byte* memory = nullptr;
  uint32_t set = 0;
};
client::Status LendContiguous(GpuRig* rig, uint64_t slot_bytes, uint64_t slots, Contiguous* out);

class DaemonSuite : public ::testing::Test {
 protected:
  void Start(const std::string& codec_place = "daemon");
  void Open(const client::LayoutSpec& spec, const cli::DeviceShape& shape, uint32_t pages);
  // The end of the daemon's log, for what a failure means.
  std::string Tail() const;
  void WriteSample();
  // What is put comes back as the reference says, out of HBM, or out of DRAM where workers pack.
  void RoundTrip(const std::string& codec, const std::string& rotation);

  std::string codec_place_;
  std::unique_ptr<GpuDaemon> daemon_;
  std::unique_ptr<GpuRig> rig_;
  std::vector<std::vector<uint8_t>> sources_;
};

}  // namespace crumb

#endif  // CRUMB_TESTS_GPU_DAEMON_SUITE_H_
