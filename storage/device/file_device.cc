// Picks the ring and describes the outcome. Start-up.
#include "storage/device/file_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/device/data_file.h"
#include "storage/device/pool_ring.h"
#include "storage/device/ring_device.h"
#include "storage/device/uring_ring.h"

namespace crumb {
namespace {

constexpr uint32_t kAlignment = 4096;
constexpr uint32_t kDepthMax = 4096;
constexpr uint32_t kPoolThreadsMax = 64;

// Keeps the descriptor open for as long as the device lives.
class OwningDevice final : public BlockDevice {
 public:
  OwningDevice(const FileDeviceOptions& file, DeviceFd fd, std::unique_ptr<Ring> ring)
      : file_(file),
        fd_(std::move(fd)),
        device_({.bytes = file.bytes,
                 .alignment = kAlignment,
                 .depth = file.depth,
                 .named_fd = fd_.get(),
                 .merge_bytes_max = file.merge_bytes_max},
                std::move(ring)) {}

  uint64_t size_bytes() const override { return device_.size_bytes(); }
  uint32_t alignment() const override { return device_.alignment(); }
  absl::Status RegisterBuffers(absl::Span<const MutableBytes> slices) override {
    return device_.RegisterBuffers(slices);
  }
  bool Queue(const IoRequest& request) override { return device_.Queue(request); }
  void Submit() override { device_.Submit(); }
  size_t Poll(absl::Span<IoCompletion> completions) override { return device_.Poll(completions); }
  size_t in_flight() const override { return device_.in_flight(); }
  int wake_fd() const override { return device_.wake_fd(); }
  absl::Status Resize(uint64_t bytes) override;

 private:
  const FileDeviceOptions file_;  // as it was opened
  DeviceFd fd_;                   // first: closed (and unlocked) after the ring is gone
  RingDevice device_;
};

}  // namespace

absl::Status CheckFileOptions(const FileDeviceOptions& options) {
  if (options.path.empty()) return absl::InvalidArgumentError("the path of the data file is empty");
  std::string problem;
  if (options.bytes == 0 || options.bytes % kAlignment != 0 || options.bytes > (1ull << 60)) {
    problem = absl::StrCat("a size of ", options.bytes,
                           " bytes: it must be a positive multiple of ", kAlignment);
  } else if (options.depth == 0 || options.depth > kDepthMax) {
    problem = absl::StrCat("a depth of ", options.depth, ": 1 to ", kDepthMax, " is possible");
  } else if (options.pool_threads == 0 || options.pool_threads > kPoolThreadsMax) {
    problem =
        absl::StrCat(options.pool_threads, " threads: 1 to ", kPoolThreadsMax, " is possible");
  }
  if (problem.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(options.path, ": ", problem));
}

// WHY the bound goes first down and last up: no request may lie beyond the end.
absl::Status OwningDevice::Resize(uint64_t bytes) {
  FileDeviceOptions wanted = file_;
  wanted.bytes = bytes;
  CRUMB_TRY(CheckFileOptions(wanted));
  const uint64_t before = size_bytes();
  if (bytes < before) CRUMB_TRY(device_.Resize(bytes));
  const absl::Status status = ResizeDataFile(wanted, fd_.get());
  if (status.ok() && bytes > before) return device_.Resize(bytes);
  if (!status.ok() && bytes < before) CRUMB_TRY(device_.Resize(before));
  return status;
}

FileDevice MakeFileDevice(const FileDeviceOptions& options, DataFile file) {
  FileDevice out;
  out.direct = file.direct;
  out.preallocated = file.preallocated;
  out.bytes_before = file.bytes_before;
  absl::StatusOr<std::unique_ptr<Ring>> ring = absl::UnavailableError("io_uring is switched off");
  if (options.allow_uring) ring = MakeUringRing(file.fd.get(), options.depth);
  out.uring = ring.ok();
  out.description = absl::StrCat(options.path, ": ", options.bytes, " bytes");
  if (file.block_device) absl::StrAppend(&out.description, " of a block device");
  if (out.uring) {
    absl::StrAppend(&out.description, ", io_uring depth ", options.depth);
  } else {
    absl::StrAppend(&out.description, ", ", options.pool_threads, " threads (",
                    ring.status().message(), ")");
    ring = MakePoolRing({file.fd.get(), options.depth, options.pool_threads});
  }
  absl::StrAppend(
      &out.description, ", ",
      out.direct ? "O_DIRECT" : absl::StrCat("page cache (", file.direct_note, ")"), ", ",
      out.preallocated ? "preallocated" : absl::StrCat("sparse (", file.allocation_note, ")"));
  out.device = std::make_unique<OwningDevice>(options, std::move(file.fd), *std::move(ring));
  return out;
}

absl::StatusOr<FileDevice> OpenFileDevice(const FileDeviceOptions& options) {
  CRUMB_TRY(CheckFileOptions(options));
  CRUMB_ASSIGN(DataFile file, OpenDataFile(options));
  return MakeFileDevice(options, std::move(file));
}

}  // namespace crumb
