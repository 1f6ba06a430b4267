// The worker's half: allocations are memfds, mapped here.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "cachesvc/base/check.h"
#include "client/src/gpu_side.h"
#include "crumb/shared_memory.h"
#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "gpu/device/gpu_worker.h"
#include "tests/support/host_gpu.h"

namespace crumb {
namespace {

struct Allocations {
  struct One {
    int fd = -1;
    uint64_t bytes = 0;
  };
  std::mutex mutex;
  std::map<uint64_t, One> by_address;
};

// Of this process; memory and descriptors live as long as it.
Allocations& All() {
  static auto* const all = new Allocations;
  return *all;
}

absl::StatusOr<GpuShare> ShareOf(const void* address, uint64_t bytes) {
  const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address));
  const std::lock_guard<std::mutex> lock(All().mutex);
  auto found = All().by_address.upper_bound(at);
  if (found == All().by_address.begin()) return absl::InvalidArgumentError("not device memory");
  --found;
  GpuShare share;
  share.device = testing::kHostGpu;
  share.handle = testing::HandleOf({.pid = ::getpid(), .fd = found->second.fd});
  share.allocation_bytes = found->second.bytes;
  share.offset = at - found->first;
  share.bytes = bytes;
  if (LiesWithin(share.offset, bytes, share.allocation_bytes)) return share;
  return absl::InvalidArgumentError("not device memory");
}

std::unique_ptr<client::SharedMemory> MakeWord() {
  std::unique_ptr<client::SharedMemory> made;
  CRUMB_CHECK(client::SharedMemory::Create(4096, &made).ok());
  return made;
}

class HostMark final : public client::GpuMark {
 public:
  int word_fd() const override { return memory_->range().fd; }
  absl::StatusOr<bool> Idle(void*) override { return true; }  // its streams end at once
  absl::Status Record(void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Wait(void*) override { return absl::OkStatus(); }

 private:
  std::unique_ptr<client::SharedMemory> memory_ = MakeWord();
};

// Kernels of the worker's own.
class HostWorkerGpu final : public client::WorkerGpu {
 public:
  void Run(const std::function<void()>& work) override { work(); }
  absl::StatusOr<std::shared_ptr<void>> RegisterHost(MutableBytes) override {
    return std::shared_ptr<void>();
  }
  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(
      std::function<absl::Status(StreamHandle)> wait_for_worker) override {
    GpuLinkParts parts = HostLinkParts();
    parts.wait_for_worker = std::move(wait_for_worker);
    CRUMB_ASSIGN(std::unique_ptr<GpuLink> link, GpuLink::Create(std::move(parts)));
    return std::shared_ptr<GpuLink>(std::move(link));
  }
  std::vector<GpuCodecMade> MakeCodecs(
      const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
      const std::shared_ptr<const RotationSet>& rotations) override {
    std::vector<GpuCodecMade> made = {Make(shape, CodecDescriptor{}, rotations)};
    for (const CodecDescriptor& one : descriptors) {
      if (one.kind != CodecKind::kRaw) made.push_back(Make(shape, one, rotations));
    }
    return made;
  }

 private:
  static GpuCodecMade Make(const PartShape& shape, const CodecDescriptor& descriptor,
                           const std::shared_ptr<const RotationSet>& rotations) {
    GpuCodecMade made;
    made.descriptor = descriptor;
    absl::StatusOr<std::unique_ptr<PageCodec>> codec =
        PageCodec::Create(shape, descriptor, rotations);
    made.status = codec.status();
    if (!codec.ok()) return made;
    auto gpu = HostGpuCodec::Make(*std::move(codec), shape);
    made.status = gpu.status();
    if (gpu.ok()) made.codec = *std::move(gpu);
    return made;
  }
};

class HostSide final : public client::GpuSide {
 public:
  absl::StatusOr<GpuShare> Share(const void* address, uint64_t bytes) override {
    return ShareOf(address, bytes);
  }
  absl::StatusOr<std::unique_ptr<client::GpuMark>> MakeMark(const GpuUuid& device) override {
    if (device != testing::kHostGpu) return absl::NotFoundError("no such GPU");
    return std::make_unique<HostMark>();
  }
  absl::StatusOr<std::unique_ptr<client::WorkerGpu>> OpenWorkerGpu(const GpuUuid&) override {
    return std::make_unique<HostWorkerGpu>();
  }
};

class HostWorker final : public GpuWorker {
 public:
  std::string name() const override { return "host memory"; }
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    const int fd = ::memfd_create("crumb-host-gpu", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError("no memory");
    }
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
    const std::lock_guard<std::mutex> lock(All().mutex);
    All().by_address[reinterpret_cast<uintptr_t>(data)] = {.fd = fd, .bytes = bytes};
    return static_cast<std::byte*>(data);
  }
  absl::Status CopyIn(void* to, const void* from_host, uint64_t bytes) override {
    std::memcpy(to, from_host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to_host, const void* from, uint64_t bytes) override {
    std::memcpy(to_host, from, bytes);
    return absl::OkStatus();
  }
  absl::Status Fill(void* memory, uint8_t value, uint64_t bytes) override {
    std::memset(memory, value, bytes);
    return absl::OkStatus();
  }
  void* stream() const override { return nullptr; }
  absl::StatusOr<std::unique_ptr<GpuLoad>> StartLoad() override {
    return absl::UnimplementedError("host memory has no kernels");
  }
};

}  // namespace

namespace client {
std::unique_ptr<GpuSide> MakeGpuSide() { return std::make_unique<HostSide>(); }
}  // namespace client

absl::StatusOr<std::unique_ptr<GpuWorker>> OpenGpuWorker(int device) {
  if (device != 0) return absl::InvalidArgumentError("there is one GPU here, number 0");
  return std::make_unique<HostWorker>();
}

}  // namespace crumb
