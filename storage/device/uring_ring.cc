// io_uring by liburing. The thread that owns the device.
#include "storage/device/uring_ring.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "storage/device/device_fd.h"

namespace crumb {
namespace {

constexpr uint64_t kWithdrawn = ~uint64_t{0};  // user_data of operations turned into no-ops
constexpr uint32_t kWaitInterruptsMax = 1'000'000;

std::string Reason(int error) {
  std::string text = std::strerror(error);
  if (error == EPERM || error == EACCES) {
    text += " (allow io_uring in the container's seccomp profile or by kernel.io_uring_disabled=0)";
  }
  return text;
}

class UringRing final : public Ring {
 public:
  explicit UringRing(int fd) : fd_(fd) {}
  ~UringRing() override {
    if (started_) io_uring_queue_exit(&ring_);
  }

  absl::Status Start(uint32_t depth);

  bool Prepare(const RingOp& op) override;
  int Submit() override;
  void Withdraw() override;
  size_t Reap(absl::Span<RingResult> results) override;
  void Wait() override;
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override;
  int wake_fd() const override { return event_.get(); }
  void Wake() override;

 private:
  absl::Status CheckOperations();
  void PrepareRead(io_uring_sqe* sqe, const RingOp& op) const;
  void PrepareWrite(io_uring_sqe* sqe, const RingOp& op) const;
  void DrainEvent();

  int fd_;
  io_uring ring_{};
  bool started_ = false, buffers_registered_ = false;
  DeviceFd event_;
  // Submission entries that the kernel has not read yet, oldest first; the first `withdrawn_` of
  // them are no-ops.
  std::vector<io_uring_sqe*> unread_;
  size_t unread_head_ = 0, unread_size_ = 0, withdrawn_ = 0;
};

absl::Status UringRing::Start(uint32_t depth) {
  io_uring_params params{};
  if (int error = io_uring_queue_init_params(depth, &ring_, &params); error < 0) {
    return absl::UnavailableError(absl::StrCat("io_uring_setup: ", Reason(-error)));
  }
  started_ = true;
  CRUMB_CHECK(params.sq_entries >= depth && params.cq_entries >= 2 * params.sq_entries);
  unread_.resize(params.sq_entries);
  CRUMB_TRY(CheckOperations());
  event_ = DeviceFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) {
    return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  if (int error = io_uring_register_eventfd(&ring_, event_.get()); error < 0) {
    return absl::UnavailableError(absl::StrCat("io_uring eventfd: ", std::strerror(-error)));
  }
  return absl::OkStatus();
}

absl::Status UringRing::CheckOperations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return absl::UnavailableError("io_uring: this kernel cannot be probed");
  constexpr std::array<int, 8> kNeeded = {
      IORING_OP_READ,       IORING_OP_WRITE,       IORING_OP_READV, IORING_OP_WRITEV,
      IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC, IORING_OP_NOP};
  bool all = true;
  for (int op : kNeeded) all = all && io_uring_opcode_supported(probe, op) != 0;
  io_uring_free_probe(probe);
  if (!all) return absl::UnavailableError("io_uring: this kernel is too old (5.6 or newer needed)");
  return absl::OkStatus();
}

void UringRing::PrepareRead(io_uring_sqe* sqe, const RingOp& op) const {
  if (op.vector_count > 0) {
    io_uring_prep_readv(sqe, fd_, op.vectors, op.vector_count, op.offset);
  } else if (op.buffer >= 0) {
    io_uring_prep_read_fixed(sqe, fd_, op.data, op.bytes, op.offset, op.buffer);
  } else {
    io_uring_prep_read(sqe, fd_, op.data, op.bytes, op.offset);
  }
}

void UringRing::PrepareWrite(io_uring_sqe* sqe, const RingOp& op) const {
  if (op.vector_count > 0) {
    io_uring_prep_writev(sqe, fd_, op.vectors, op.vector_count, op.offset);
  } else if (op.buffer >= 0) {
    io_uring_prep_write_fixed(sqe, fd_, op.data, op.bytes, op.offset, op.buffer);
  } else {
    io_uring_prep_write(sqe, fd_, op.data, op.bytes, op.offset);
  }
  if (op.op == IoOp::kWriteDurable) sqe->rw_flags = RWF_DSYNC;
}

bool UringRing::Prepare(const RingOp& op) {
  if (unread_size_ == unread_.size()) return false;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return false;
  switch (op.op) {
    case IoOp::kRead:
      PrepareRead(sqe, op);
      break;
    case IoOp::kWrite:
    case IoOp::kWriteDurable:
      PrepareWrite(sqe, op);
      break;
    case IoOp::kSync:
      io_uring_prep_fsync(sqe, fd_, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(sqe, op.user_data);
  unread_[(unread_head_ + unread_size_) % unread_.size()] = sqe;
  ++unread_size_;
  return true;
}

int UringRing::Submit() {
  const int result = io_uring_submit(&ring_);
  if (result <= 0) return result;
  const auto read = static_cast<size_t>(result);
  CRUMB_CHECK(read <= unread_size_);
  unread_head_ = (unread_head_ + read) % unread_.size();
  unread_size_ -= read;
  const size_t no_ops = std::min(read, withdrawn_);
  withdrawn_ -= no_ops;
  return static_cast<int>(read - no_ops);
}

// The kernel reads entries only inside io_uring_enter, so one that it did not take is still ours.
void UringRing::Withdraw() {
  for (size_t i = withdrawn_; i < unread_size_; ++i) {
    io_uring_sqe* sqe = unread_[(unread_head_ + i) % unread_.size()];
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, kWithdrawn);
  }
  withdrawn_ = unread_size_;
}

void UringRing::DrainEvent() {
  uint64_t count = 0;
  const ssize_t ignored = ::read(event_.get(), &count, sizeof(count));
  static_cast<void>(ignored);  // EAGAIN: nothing was signalled
}

size_t UringRing::Reap(absl::Span<RingResult> results) {
  // WHY drain only when empty: while results come, the next call looks again anyway.
  if (io_uring_cq_ready(&ring_) == 0) DrainEvent();
  size_t count = 0;
  io_uring_cqe* cqe = nullptr;
  while (count < results.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const RingResult result = {io_uring_cqe_get_data64(cqe), cqe->res};
    io_uring_cqe_seen(&ring_, cqe);
    if (result.user_data != kWithdrawn) results[count++] = result;
  }
  return count;
}

void UringRing::Wait() {
  io_uring_cqe* cqe = nullptr;
  int error = -EINTR;
  for (uint32_t i = 0; i < kWaitInterruptsMax && error == -EINTR; ++i) {
    error = io_uring_wait_cqe(&ring_, &cqe);
  }
  CRUMB_CHECK(error == 0);
}

absl::Status UringRing::RegisterBuffers(absl::Span<const MutableBytes> slices) {
  if (buffers_registered_) {
    if (int error = io_uring_unregister_buffers(&ring_); error < 0) {
      return absl::UnavailableError(absl::StrCat("unregister buffers: ", std::strerror(-error)));
    }
    buffers_registered_ = false;
  }
  if (slices.empty()) return absl::OkStatus();
  std::vector<iovec> vectors;
  for (const MutableBytes& slice : slices) vectors.push_back({slice.data(), slice.size()});
  const auto count = static_cast<unsigned>(vectors.size());
  if (int error = io_uring_register_buffers(&ring_, vectors.data(), count); error < 0) {
    std::string text = absl::StrCat("io_uring buffers: ", std::strerror(-error));
    if (error == -ENOMEM) text += " (raise RLIMIT_MEMLOCK: LimitMEMLOCK=infinity in the unit)";
    return absl::UnavailableError(text);
  }
  buffers_registered_ = true;
  return absl::OkStatus();
}

void UringRing::Wake() {
  const uint64_t one = 1;
  const ssize_t ignored = ::write(event_.get(), &one, sizeof(one));
  static_cast<void>(ignored);  // EAGAIN: it is readable already
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> MakeUringRing(int fd, uint32_t depth) {
  auto ring = std::make_unique<UringRing>(fd);
  CRUMB_TRY(ring->Start(depth));
  return std::unique_ptr<Ring>(std::move(ring));
}

}  // namespace crumb
