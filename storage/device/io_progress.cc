// Short counts, end of file and transient errors of one request. Pure.
#include "storage/device/io_progress.h"

#include <cerrno>

#include "cachesvc/base/check.h"

namespace crumb {
namespace {

IoVerdict RetryOrFail(IoProgress* progress, int error) {
  if (++progress->retries > kIoRetriesMax) return {IoStep::kFailed, error};
  return {IoStep::kResubmit, 0};
}

bool IsTransient(int error) { return error == EINTR || error == EAGAIN || error == EBUSY; }

}  // namespace

int CheckIoRequest(const IoRequest& request, uint64_t device_bytes, uint32_t alignment) {
  if (request.op == IoOp::kSync) return 0;
  const uint64_t mask = alignment - 1;
  if (request.bytes == 0 || request.data == nullptr) return EINVAL;
  if ((request.bytes & mask) != 0 || (request.offset & mask) != 0) return EINVAL;
  if ((reinterpret_cast<uintptr_t>(request.data) & mask) != 0) return EINVAL;
  if (request.offset > device_bytes || request.bytes > device_bytes - request.offset) return EINVAL;
  return 0;
}

IoVerdict AdvanceIo(const IoRequest& request, uint32_t alignment, int64_t result,
                    IoProgress* progress) {
  if (result < 0) {
    const int error = static_cast<int>(-result);
    if (IsTransient(error)) return RetryOrFail(progress, error);
    return {IoStep::kFailed, error};
  }
  if (request.op == IoOp::kSync) {
    return result == 0 ? IoVerdict{IoStep::kDone, 0} : IoVerdict{IoStep::kFailed, EIO};
  }
  CRUMB_CHECK(progress->done < request.bytes);
  const uint32_t rest = request.bytes - progress->done;
  if (result > rest) return {IoStep::kFailed, EIO};  // more than was asked for: not believable
  if (result == rest) {
    progress->done = request.bytes;
    return {IoStep::kDone, 0};
  }
  if (result == 0 && request.op == IoOp::kRead) return {IoStep::kFailed, EIO};  // end of file
  // WHY: O_DIRECT goes on only at block boundaries, so a part of a block is transferred again. A
  // count that ends within the same block for ever is the end of a cut file.
  const uint32_t total = progress->done + static_cast<uint32_t>(result);
  const uint32_t whole = total & ~(alignment - 1);
  if (whole == progress->done) return RetryOrFail(progress, EIO);
  progress->done = whole;
  return {IoStep::kResubmit, 0};
}

}  // namespace crumb
