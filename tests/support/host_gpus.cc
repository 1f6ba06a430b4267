// The daemon's half: the HBM pool is host memory, links are the host's, codecs the CPU's, and a
// worker's memory is mapped through its descriptor.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/server/gpus.h"
#include "gpu/codec/host_gpu_codec.h"
#include "gpu/codec/host_link.h"
#include "tests/support/host_gpu.h"

namespace crumb {
namespace {

constexpr uint64_t kTotalBytes = 4ull << 30;

// The host's codec as one of GPU 0.
class CodecOfGpu final : public GpuCodec {
 public:
  explicit CodecOfGpu(std::unique_ptr<HostGpuCodec> codec) : codec_(std::move(codec)) {}
  const CodecDescriptor& descriptor() const override { return codec_->descriptor(); }
  int device() const override { return 0; }
  uint32_t payload_bytes() const override { return codec_->payload_bytes(); }
  bool encodes() const override { return codec_->encodes(); }
  absl::Status Decode(const CudaPages& pages, Frame frame, StreamHandle stream) const override {
    return codec_->Decode(pages, frame, stream);
  }
  absl::Status Encode(const CudaPages& pages, Effort effort, StreamHandle stream) const override {
    return codec_->Encode(pages, effort, stream);
  }
  absl::Status ResetReports(const CudaPages& pages, StreamHandle stream) const override {
    return codec_->ResetReports(pages, stream);
  }
  EncodeReport ReportOf(const CudaPageReport& report) const override {
    return codec_->ReportOf(report);
  }

 private:
  const std::unique_ptr<HostGpuCodec> codec_;
};

class HostGpus final : public Gpus {
 public:
  const std::vector<GpuInfo>& devices() const override { return devices_; }
  // Lost while a file that a test names is there.
  absl::StatusOr<DeviceMemory> AskMemory(int) override {
    const char* lost = std::getenv("CRUMB_HOST_GPU_LOST");
    if (lost != nullptr && ::access(lost, F_OK) == 0) {
      return absl::UnavailableError("GPU 0 of host memory is gone: put it back");
    }
    return DeviceMemory{.total_bytes = kTotalBytes, .free_bytes = kTotalBytes};
  }

  absl::StatusOr<GpuArea> MakeArena(const DeviceArenaOptions& options) override {
    void* const data = ::mmap(nullptr, options.bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
    const std::shared_ptr<void> owner(
        data, [bytes = options.bytes](void* memory) { ::munmap(memory, bytes); });
    return GpuArea{.memory = {static_cast<uint8_t*>(data), options.bytes}, .owner = owner};
  }
  absl::StatusOr<GpuArea> RegisterHost(int, MutableBytes memory) override {
    return GpuArea{.memory = memory, .owner = nullptr};
  }

  absl::StatusOr<GpuImports::Range> Map(const GpuShare& share) override {
    const auto allocation = testing::AllocationOf(share.handle);
    if (share.device != testing::kHostGpu) return absl::NotFoundError("no such GPU here");
    if (!allocation.has_value()) return absl::FailedPreconditionError("no handle of host memory");
    const std::string path =
        "/proc/" + std::to_string(allocation->pid) + "/fd/" + std::to_string(allocation->fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return absl::FailedPreconditionError(path + ": the worker may be gone");
    struct stat file {};
    const bool sized = ::fstat(fd, &file) == 0 &&
                       LiesWithin(share.offset, share.bytes, static_cast<uint64_t>(file.st_size));
    const auto bytes = static_cast<uint64_t>(file.st_size);
    void* const data =
        sized ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    ::close(fd);
    if (data == MAP_FAILED) return absl::InvalidArgumentError(path + " is shorter than was said");
    maps_[++last_] = {data, bytes};
    return GpuImports::Range{.data = static_cast<std::byte*>(data) + share.offset,
                             .bytes = share.bytes,
                             .device = 0,
                             .import = last_};
  }
  void Unmap(const GpuImports::Range& range) override {
    const auto found = maps_.find(range.import);
    CRUMB_CHECK(found != maps_.end());
    ::munmap(found->second.first, found->second.second);
    maps_.erase(found);
  }

  absl::StatusOr<std::shared_ptr<GpuLink>> MakeLink(const CudaLinkOptions&) override {
    GpuLinkParts parts = HostLinkParts();
    parts.device_number = 0;
    CRUMB_ASSIGN(std::unique_ptr<GpuLink> link, GpuLink::Create(std::move(parts)));
    return std::shared_ptr<GpuLink>(std::move(link));
  }

  std::vector<GpuCodecMade> MakeCodecs(const GpuCodecsWish& wish) override {
    std::vector<GpuCodecMade> made = {Make(wish, CodecDescriptor{})};
    for (const CodecDescriptor& descriptor : wish.descriptors) {
      if (descriptor.kind != CodecKind::kRaw) made.push_back(Make(wish, descriptor));
    }
    return made;
  }

 private:
  static absl::StatusOr<std::shared_ptr<const GpuCodec>> Codec(const GpuCodecsWish& wish,
                                                               const CodecDescriptor& descriptor) {
    CRUMB_ASSIGN(std::unique_ptr<PageCodec> codec,
                 PageCodec::Create(*wish.shape, descriptor, wish.rotations));
    CRUMB_ASSIGN(std::unique_ptr<HostGpuCodec> gpu,
                 HostGpuCodec::Make(std::move(codec), *wish.shape));
    return std::shared_ptr<const GpuCodec>(std::make_shared<CodecOfGpu>(std::move(gpu)));
  }
  static GpuCodecMade Make(const GpuCodecsWish& wish, const CodecDescriptor& descriptor) {
    GpuCodecMade made;
    made.descriptor = descriptor;
    auto codec = Codec(wish, descriptor);
    made.status = codec.status();
    if (codec.ok()) made.codec = *std::move(codec);
    return made;
  }

  const std::vector<GpuInfo> devices_ = {{.name = "host memory", .memory_bytes = kTotalBytes}};
  uint64_t last_ = 0;
  std::map<uint64_t, std::pair<void*, uint64_t>> maps_;
};

}  // namespace

bool BuiltWithCuda() { return true; }  // else a pool of it is no choice

absl::StatusOr<std::unique_ptr<Gpus>> OpenGpus(uint32_t) { return std::make_unique<HostGpus>(); }

}  // namespace crumb
