// The worker's half of lending: a file goes over once, its ranges are named by file and offset.
// The one place that waits, for one answer, with a deadline: start-up and registration only.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/bytes.h"
#include "cachesvc/net/frames.h"
#include "cachesvc/net/uds_core.h"

namespace crumb {
namespace {

absl::Status WhyRefused(UdsRefusal refusal) {
  switch (refusal) {
    case UdsRefusal::kNotMemory:
      return absl::InvalidArgumentError(
          "Lend: the daemon maps memfds and files of memory file systems (/dev/shm) only");
    case UdsRefusal::kTooShort:
      return absl::InvalidArgumentError("Lend: the file is shorter than what was lent of it");
    case UdsRefusal::kTooMany:
      return absl::ResourceExhaustedError(
          "Lend: the daemon has as many files or bytes of this worker as it takes: lend fewer, "
          "larger files");
    case UdsRefusal::kNoGpu:
      return absl::FailedPreconditionError(
          "Lend: the daemon uses no GPU, or does not see this one: build it with CUDA, start it "
          "where the GPU is visible (CUDA_VISIBLE_DEVICES, the container's devices), and see what "
          "its log says of GPUs");
    case UdsRefusal::kNotShared:
      return absl::FailedPreconditionError(
          "Lend: CUDA could not map the memory in the daemon: give both one container or PID and "
          "IPC namespace, lend memory of cudaMalloc (not of a CUDA pool, nor of PyTorch's "
          "expandable segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False), and see the "
          "daemon's log for CUDA's word");
    case UdsRefusal::kOtherGpu:
      return absl::InvalidArgumentError(
          "Lend: one connection lends memory of one GPU: use a client of its own for each GPU");
    case UdsRefusal::kNoWord:
      return absl::InvalidArgumentError(
          "Lend: word_fd must be a memfd of at least eight bytes that is sealed against shrinking");
    case UdsRefusal::kNone:
    case UdsRefusal::kNoMapping:
      break;
  }
  return absl::ResourceExhaustedError(
      "Lend: the daemon cannot map the file: open it for reading and writing, and look at the "
      "daemon's limits (vm.max_map_count, RLIMIT_AS)");
}

}  // namespace

UdsLentFile* UdsCore::FindLent(uint64_t name) {
  const auto found = std::find_if(lent_.begin(), lent_.end(),
                                  [name](const UdsLentFile& file) { return file.name == name; });
  return found == lent_.end() ? nullptr : &*found;
}

void UdsCore::TakeAnswer(UdsPeerRecord* peer, const UdsFrame& frame) {
  UdsLentFile* file = FindLent(frame.file);
  if (file == nullptr || file->answered) {
    if (file != nullptr || frame.file > last_file_) Malformed(peer);
    return;  // late: nobody waits for it any more
  }
  file->answered = true;
  file->refusal = static_cast<UdsRefusal>(frame.value);
}

// One wait for the daemon's socket, and the progress that came of it.
absl::Status UdsCore::WaitFor(uint64_t until_us, short events) {
  UdsPeerRecord* peer = FindOpen(daemon_);
  if (peer == nullptr) return absl::UnavailableError("Lend: the daemon is gone");
  if (peer->stopped) {
    return absl::ResourceExhaustedError("Lend: too many messages wait: Poll them first");
  }
  const uint64_t now = clock_.now_us();
  if (now >= until_us) {
    return absl::DeadlineExceededError(absl::StrCat(path, ": the daemon does not answer"));
  }
  if (!peer->sends.empty()) events |= POLLOUT;
  pollfd wait = {.fd = peer->fd, .events = events, .revents = 0};
  const auto ms = static_cast<int>((until_us - now) / 1000 + 1);
  if (poll(&wait, 1, ms) < 0 && errno != EINTR) {
    return absl::InternalError(absl::StrCat("Lend: poll: ", std::strerror(errno)));
  }
  Progress();
  return absl::OkStatus();
}

absl::Status UdsCore::Give(const UdsFrame& lend, int fd, uint64_t timeout_us) {
  const uint64_t until = clock_.now_us() + timeout_us;
  const uint64_t name = lend.file;
  const UdsFrameBytes frame = MakeUdsFrame(lend);
  for (;;) {  // ends at `until` at the latest
    UdsPeerRecord* peer = FindOpen(daemon_);
    if (peer == nullptr) return absl::UnavailableError("Lend: the daemon is gone");
    if (peer->sends.empty()) {
      const UdsIo sent = UdsSend(peer->fd, frame.span(), {}, fd);
      if (sent == UdsIo::kDone) break;
      if (sent == UdsIo::kClosed) {
        Fail(peer);
        continue;
      }
    }
    CRUMB_TRY(WaitFor(until, POLLOUT));
  }
  while (!FindLent(name)->answered) CRUMB_TRY(WaitFor(until, POLLIN));
  const UdsRefusal refusal = FindLent(name)->refusal;
  return refusal == UdsRefusal::kNone ? absl::OkStatus() : WhyRefused(refusal);
}

// The name of the file that holds the range at the other side, which is given it if need be.
absl::StatusOr<uint64_t> UdsCore::FileFor(const SharedRange& range) {
  struct stat info {};
  if (fstat(range.fd, &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Lend: descriptor ", range.fd, ": ", std::strerror(errno)));
  }
  const auto size = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  if (range.bytes == 0 || range.offset > size || range.bytes > size - range.offset) {
    return absl::InvalidArgumentError(absl::StrCat("Lend: ", range.bytes, " bytes at offset ",
                                                   range.offset, " of a file of ", size));
  }
  for (const UdsLentFile& file : lent_) {
    const bool same = file.device == info.st_dev && file.inode == info.st_ino;
    if (same && range.offset + range.bytes <= file.bytes) return file.name;
  }
  UdsLentFile file;
  file.device = info.st_dev;
  file.inode = info.st_ino;
  file.bytes = size;
  return GiveNew(file, {.kind = UdsFrameKind::kLend, .value = size}, range.fd);
}

absl::StatusOr<uint64_t> UdsCore::GiveNew(UdsLentFile file, UdsFrame frame, int fd) {
  const uint64_t name = file.name = frame.file = ++last_file_;
  lent_.push_back(file);
  const bool slow = frame.kind == UdsFrameKind::kLendGpu;
  const absl::Status given =
      Give(frame, fd, slow ? options_.lend_gpu_timeout_us : options_.lend_timeout_us);
  if (given.ok()) return name;
  std::erase_if(lent_, [name](const UdsLentFile& other) { return other.name == name; });
  if (UdsPeerRecord* peer = FindOpen(daemon_); peer != nullptr && absl::IsDeadlineExceeded(given)) {
    Fail(peer);  // whether it has the file is not known
  }
  return given;
}

absl::StatusOr<Region> UdsCore::Lend(const SharedRange& range) {
  if (FindOpen(daemon_) == nullptr) return absl::UnavailableError("Lend: not connected");
  if (range.bytes > UINT64_MAX - range.address) {
    return absl::InvalidArgumentError("Lend: the range passes the end of the address space");
  }
  CRUMB_ASSIGN(const uint64_t name, FileFor(range));
  return Named({.file = name, .offset = range.offset}, {range.address, range.bytes});
}

absl::StatusOr<Region> UdsCore::LendGpu(const GpuRange& range) {
  if (FindOpen(daemon_) == nullptr) return absl::UnavailableError("Lend: not connected");
  UdsGpuShare parts;
  if (!ParseUdsGpuShare(range.share, &parts)) {
    return absl::InvalidArgumentError("Lend: no handle of GPU memory: see ShareGpuMemory");
  }
  const uint64_t all = parts.allocation_bytes;
  if (range.bytes == 0 || range.offset > all || range.bytes > all - range.offset ||
      range.bytes > UINT64_MAX - range.address) {
    return absl::InvalidArgumentError(absl::StrCat("Lend: ", range.bytes, " bytes at offset ",
                                                   range.offset, " of an allocation of ", all));
  }
  UdsLentFile file;
  file.share = WholeUdsGpuShare(range.share);
  file.bytes = all;
  const RegionRange named = {range.address, range.bytes};
  for (const UdsLentFile& known : lent_) {
    if (known.share == file.share) {
      return Named({.file = known.name, .offset = range.offset}, named);
    }
  }
  const UdsFrame frame{.kind = UdsFrameKind::kLendGpu, .share = file.share};
  CRUMB_ASSIGN(const uint64_t name, GiveNew(file, frame, range.word_fd));
  return Named({.file = name, .offset = range.offset}, named);
}

// A region of a file that the other side has.
Region UdsCore::Named(const UdsRkey& place, const RegionRange& range) {
  ++FindLent(place.file)->regions;
  const auto key = MakeUdsRkey(place);
  return Region{.address = range.address,
                .bytes = range.bytes,
                .rkey = EncodeRkey({.address = range.address, .bytes = range.bytes, .key = key})};
}

void UdsCore::Unlend(const Region& region) {
  const absl::StatusOr<RkeyFrame> key = ParseRkey(AsBytes(region.rkey));
  UdsRkey place;
  if (!key.ok() || !ParseUdsRkey(key->key, &place)) return;
  UdsLentFile* file = FindLent(place.file);
  if (file == nullptr || --file->regions > 0) return;
  std::erase_if(lent_, [&](const UdsLentFile& other) { return other.name == place.file; });
  UdsPeerRecord* peer = FindOpen(daemon_);
  if (peer == nullptr) return;
  const UdsFrameBytes frame =
      MakeUdsFrame({.kind = UdsFrameKind::kUnlend, .file = place.file, .value = 0, .message = {}});
  // A daemon that takes nothing any more keeps it until the connection ends, which is now.
  if (QueueFrame(peer, frame.span(), {}) == BlockResult::kBusy) Fail(peer);
}

}  // namespace crumb
