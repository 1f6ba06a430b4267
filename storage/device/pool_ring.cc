// pread, pwrite and fdatasync on pool threads, one system call per operation: short counts and
// EINTR go up as they are, ring_device deals with them.
#include "storage/device/pool_ring.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "cachesvc/base/check.h"
#include "cachesvc/base/worker_pool.h"
#include "storage/device/device_fd.h"
#include "storage/device/index_queue.h"

namespace crumb {
namespace {

constexpr size_t kPollBatch = 64;

struct PoolOp {
  RingOp op;
  int fd = -1;
  int32_t result = 0;
};

void Run(void* arg, uint32_t) noexcept {
  auto* pool_op = static_cast<PoolOp*>(arg);
  const RingOp& op = pool_op->op;
  const iovec vector = {op.data, op.bytes};
  const iovec* vectors = op.vector_count > 0 ? op.vectors : &vector;
  const int count = op.vector_count > 0 ? static_cast<int>(op.vector_count) : 1;
  const auto offset = static_cast<off_t>(op.offset);
  ssize_t result = 0;
  switch (op.op) {
    case IoOp::kRead:
      result = ::preadv2(pool_op->fd, vectors, count, offset, 0);
      break;
    case IoOp::kWrite:
      result = ::pwritev2(pool_op->fd, vectors, count, offset, 0);
      break;
    case IoOp::kWriteDurable:
      result = ::pwritev2(pool_op->fd, vectors, count, offset, RWF_DSYNC);
      break;
    case IoOp::kSync:
      result = ::fdatasync(pool_op->fd);
      break;
  }
  pool_op->result = static_cast<int32_t>(result < 0 ? -errno : result);
}

class PoolRing final : public Ring {
 public:
  explicit PoolRing(const PoolRingOptions& options)
      : ops_(options.depth),
        free_(options.depth),
        prepared_(options.depth),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        both_(::epoll_create1(EPOLL_CLOEXEC)),
        pool_(options.threads, options.depth) {
    CRUMB_CHECK(wake_.valid() && both_.valid());
    for (int fd : {wake_.get(), pool_.wake_fd()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      CRUMB_CHECK(::epoll_ctl(both_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
    }
    for (uint32_t i = 0; i < options.depth; ++i) {
      ops_[i].fd = options.fd;
      free_.Push(i);
    }
  }

  bool Prepare(const RingOp& op) override {
    if (free_.empty()) return false;
    const uint32_t index = free_.Pop();
    ops_[index].op = op;
    prepared_.Push(index);
    return true;
  }

  int Submit() override {
    int taken = 0;
    while (!prepared_.empty()) {
      const uint32_t index = prepared_.Front();
      if (!pool_.Submit({&Run, &ops_[index], index})) break;
      prepared_.Pop();
      ++taken;
    }
    return taken;
  }

  void Withdraw() override {
    while (!prepared_.empty()) free_.Push(prepared_.Pop());
  }

  size_t Reap(absl::Span<RingResult> results) override {
    if (woken_) {
      eventfd_t ignored = 0;
      woken_ = ::eventfd_read(wake_.get(), &ignored) != 0;
    }
    std::array<uint64_t, kPollBatch> tokens;
    const size_t want = std::min(results.size(), tokens.size());
    const size_t count = pool_.Poll(absl::MakeSpan(tokens.data(), want));
    for (size_t i = 0; i < count; ++i) {
      const auto index = static_cast<uint32_t>(tokens[i]);
      results[i] = {ops_[index].op.user_data, ops_[index].result};
      free_.Push(index);
    }
    return count;
  }

  void Wait() override {
    pollfd entry = {pool_.wake_fd(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, -1);
    CRUMB_CHECK(ready >= 0 || errno == EINTR);
  }

  absl::Status RegisterBuffers(absl::Span<const MutableBytes>) override { return absl::OkStatus(); }
  int wake_fd() const override { return both_.get(); }
  void Wake() override {
    if (!woken_) woken_ = ::eventfd_write(wake_.get(), 1) == 0;
  }

 private:
  std::vector<PoolOp> ops_;
  IndexQueue free_, prepared_;
  DeviceFd wake_, both_;  // Wake's event; that and the pool's as one descriptor
  bool woken_ = false;
  WorkerPool pool_;  // last: its threads end before what they use
};

}  // namespace

std::unique_ptr<Ring> MakePoolRing(const PoolRingOptions& options) {
  return std::make_unique<PoolRing>(options);
}

}  // namespace crumb
