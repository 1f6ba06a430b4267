// Parts of a link on a device.
#include "gpu/codec/cuda_link.h"

#include <utility>

#include "gpu/device/cuda_memory.h"
#include "gpu/device/cuda_share.h"

namespace crumb {
namespace {

struct Areas {
  PinnedBuffer host;
  DeviceBuffer device;
};

}  // namespace

absl::StatusOr<std::shared_ptr<GpuLink>> MakeCudaLink(const CudaLinkOptions& options) {
  GpuLinkParts parts;
  parts.wait_for_worker = options.wait_for_worker;
  if (options.event.has_value()) {
    CRUMB_ASSIGN(GpuEvent opened, GpuEvent::Open(*options.event, options.device));
    // WHY shared: a function must be copyable.
    auto event = std::make_shared<GpuEvent>(std::move(opened));
    parts.wait_for_worker = [event](StreamHandle stream) { return event->Wait(stream); };
  }
  auto areas = std::make_shared<Areas>();
  CRUMB_ASSIGN(areas->host, PinnedBuffer::Create(options.device, GpuLink::HostBytes()));
  CRUMB_ASSIGN(areas->device, DeviceBuffer::Create(options.device, GpuLink::DeviceBytes()));
  const CudaQueueOptions queue = {.device = options.device, .priority = options.priority};
  CRUMB_ASSIGN(parts.queue, CudaQueue::Create(queue));
  parts.host = {reinterpret_cast<uint8_t*>(areas->host.data()), GpuLink::HostBytes()};
  parts.device = reinterpret_cast<uint8_t*>(areas->device.data());
  parts.owner = std::move(areas);
  parts.device_number = options.device;
  parts.slices_from = options.slices_from;
  parts.slice_bytes = options.slice_bytes;
  CRUMB_ASSIGN(std::unique_ptr<GpuLink> link, GpuLink::Create(std::move(parts)));
  return std::shared_ptr<GpuLink>(std::move(link));
}

}  // namespace crumb
