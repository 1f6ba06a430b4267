// One log on a memory device whose faults a test plans. One thread.
#ifndef CRUMB_TESTS_UNIT_STORAGE_SEGMENT_SEGMENT_LOG_FIXTURE_H_
#define CRUMB_TESTS_UNIT_STORAGE_SEGMENT_SEGMENT_LOG_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>

#include "storage/device/fault_device.h"
#include "storage/device/mem_device.h"
#include "storage/segment/log_format.h"
#include "storage/segment/segment_log.h"
#include "tests/support/log_tester.h"

namespace crumb {

inline constexpr uint64_t kBytes = 8 << 20;
inline constexpr uint32_t kSegment = 1 << 20;
inline constexpr uint32_t kPayload = 100'000;  // 25 blocks with its header

class SegmentLogTest : public ::testing::Test {
 protected:
  static SegmentLogOptions Options() {
    SegmentLogOptions options;
    options.bytes_max = kBytes;
    options.segment_bytes = kSegment;
    options.secret_fingerprint = 42;
    options.format_seed = 7;
    return options;
  }
  void Open() { ASSERT_TRUE(log_.Open().ok()); }
  void Reopen() {
    log_.Drop();
    Open();
  }
  absl::Status OpenStatus() { return log_.Open(); }
  MutableBytes Block(uint64_t offset) { return mem_.mutable_image().subspan(offset, kLogBlock); }

  MemDevice mem_{{kBytes, 4096, 64, false}};
  Fault fault_;
  std::function<Fault(const IoRequest&)> plan_;
  FaultDevice device_{&mem_, [this](const IoRequest& request, uint64_t) {
                        return plan_ ? plan_(request) : Fault{};
                      }};
  testing::LogTester log_{&device_, Options()};
};

}  // namespace crumb

#endif  // CRUMB_TESTS_UNIT_STORAGE_SEGMENT_SEGMENT_LOG_FIXTURE_H_
