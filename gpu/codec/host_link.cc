// Two areas and a queue. Start-up.
#include "gpu/codec/host_link.h"

#include <utility>

#include "gpu/device/host_stream_queue.h"

namespace crumb {
namespace {

constexpr uint32_t kWorkMax = 256;

struct Areas {
  // WHY of 16 bytes each: memory of operator new is aligned for them.
  struct alignas(16) Line {
    uint8_t bytes[16];
  };
  std::unique_ptr<Line[]> host = std::make_unique<Line[]>(GpuLink::HostBytes() / sizeof(Line) + 1);
  std::unique_ptr<Line[]> device =
      std::make_unique<Line[]>(GpuLink::DeviceBytes() / sizeof(Line) + 1);
};

}  // namespace

GpuLinkParts HostLinkParts(std::unique_ptr<StreamQueue> queue) {
  if (queue == nullptr) queue = std::make_unique<HostStreamQueue>(kWorkMax);
  auto areas = std::make_shared<Areas>();
  GpuLinkParts parts;
  parts.queue = std::move(queue);
  parts.host = {areas->host[0].bytes, GpuLink::HostBytes()};
  parts.device = areas->device[0].bytes;
  parts.owner = std::move(areas);
  return parts;
}

absl::StatusOr<std::unique_ptr<GpuLink>> MakeHostLink() { return GpuLink::Create(HostLinkParts()); }

}  // namespace crumb
