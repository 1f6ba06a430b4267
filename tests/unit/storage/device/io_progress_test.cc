// Every odd result that a kernel may give for one request. One thread.
#include "storage/device/io_progress.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "storage/device/aligned_buffer.h"

namespace crumb {
namespace {

constexpr uint32_t kAlign = 4096;

class IoProgressTest : public ::testing::Test {
 protected:
  IoRequest Request(IoOp op, uint32_t bytes = 4 * kAlign) {
    return {op, kAlign, buffer_.data(), bytes, 7};
  }
  AlignedBuffer buffer_{16 * kAlign};
  IoProgress progress_;
};

TEST_F(IoProgressTest, WholeCountIsDone) {
  for (IoOp op : {IoOp::kRead, IoOp::kWrite, IoOp::kWriteDurable}) {
    progress_ = {};
    EXPECT_EQ(AdvanceIo(Request(op), kAlign, 4 * kAlign, &progress_).step, IoStep::kDone);
    EXPECT_EQ(progress_.done, 4 * kAlign);
  }
}

TEST_F(IoProgressTest, OneByteShortGoesOnFromTheLastWholeBlock) {
  const IoRequest read = Request(IoOp::kRead);
  EXPECT_EQ(AdvanceIo(read, kAlign, 4 * kAlign - 1, &progress_).step, IoStep::kResubmit);
  EXPECT_EQ(progress_.done, 3 * kAlign);
  EXPECT_EQ(AdvanceIo(read, kAlign, kAlign, &progress_).step, IoStep::kDone);
}

TEST_F(IoProgressTest, EndOfFileInsideARead) {
  const IoVerdict verdict = AdvanceIo(Request(IoOp::kRead), kAlign, 0, &progress_);
  EXPECT_EQ(verdict.step, IoStep::kFailed);
  EXPECT_EQ(verdict.error, EIO);
}

TEST_F(IoProgressTest, EndOfFileInsideABlockEndsAfterBoundedRetries) {
  const IoRequest read = Request(IoOp::kRead);
  uint32_t steps = 0;
  IoVerdict verdict;
  do {
    verdict = AdvanceIo(read, kAlign, 100, &progress_);
    ASSERT_EQ(progress_.done, 0u);
    ASSERT_LE(++steps, kIoRetriesMax + 1);
  } while (verdict.step == IoStep::kResubmit);
  EXPECT_EQ(verdict.error, EIO);
  EXPECT_EQ(steps, kIoRetriesMax + 1);
}

TEST_F(IoProgressTest, AWriteOfNothingEndsAfterBoundedRetries) {
  IoVerdict verdict;
  for (uint32_t i = 0; i <= kIoRetriesMax; ++i) {
    verdict = AdvanceIo(Request(IoOp::kWrite), kAlign, 0, &progress_);
  }
  EXPECT_EQ(verdict.step, IoStep::kFailed);
}

TEST_F(IoProgressTest, TransientErrorsAreRetriedBounded) {
  for (int error : {EINTR, EAGAIN, EBUSY}) {
    progress_ = {};
    for (uint32_t i = 0; i < kIoRetriesMax; ++i) {
      ASSERT_EQ(AdvanceIo(Request(IoOp::kRead), kAlign, -error, &progress_).step,
                IoStep::kResubmit);
    }
    const IoVerdict verdict = AdvanceIo(Request(IoOp::kRead), kAlign, -error, &progress_);
    EXPECT_EQ(verdict.step, IoStep::kFailed);
    EXPECT_EQ(verdict.error, error);
  }
}

TEST_F(IoProgressTest, OtherErrorsAreFinal) {
  for (int error : {EIO, ENOSPC, EINVAL, EBADF, EOPNOTSUPP}) {
    progress_ = {};
    const IoVerdict verdict = AdvanceIo(Request(IoOp::kWrite), kAlign, -error, &progress_);
    EXPECT_EQ(verdict.step, IoStep::kFailed);
    EXPECT_EQ(verdict.error, error);
  }
}

TEST_F(IoProgressTest, ACountAboveTheRequestIsNotBelieved) {
  EXPECT_EQ(AdvanceIo(Request(IoOp::kRead), kAlign, 4 * kAlign + 1, &progress_).error, EIO);
  progress_ = {3 * kAlign, 0};
  EXPECT_EQ(AdvanceIo(Request(IoOp::kRead), kAlign, 2 * kAlign, &progress_).error, EIO);
}

TEST_F(IoProgressTest, ASyncIsDoneOrFailed) {
  EXPECT_EQ(AdvanceIo({IoOp::kSync}, kAlign, 0, &progress_).step, IoStep::kDone);
  EXPECT_EQ(AdvanceIo({IoOp::kSync}, kAlign, 1, &progress_).error, EIO);
  EXPECT_EQ(AdvanceIo({IoOp::kSync}, kAlign, -EIO, &progress_).error, EIO);
}

TEST_F(IoProgressTest, RequestsAreCheckedWithoutWrapping) {
  const uint64_t device = 16 * kAlign;
  EXPECT_EQ(CheckIoRequest(Request(IoOp::kRead), device, kAlign), 0);
  EXPECT_EQ(CheckIoRequest({IoOp::kSync}, device, kAlign), 0);
  IoRequest bad = Request(IoOp::kRead);
  bad.bytes = 0;
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad = Request(IoOp::kRead, kAlign - 1);
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad = Request(IoOp::kRead);
  bad.data += 8;
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad = Request(IoOp::kRead);
  bad.offset += 512;
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad.offset = 13 * kAlign;
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad.offset = ~uint64_t{0} - kAlign + 1;
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
  bad = {IoOp::kRead, 0, nullptr, kAlign, 0};
  EXPECT_EQ(CheckIoRequest(bad, device, kAlign), EINVAL);
}

}  // namespace
}  // namespace crumb
