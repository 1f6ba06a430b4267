// A GpuLink of the host: its stream does the work at once, its "device" is plain memory, its codecs
// are HostGpuCodecs. For tests and simulators of everything above.
#ifndef CRUMB_GPU_CODEC_HOST_LINK_H_
#define CRUMB_GPU_CODEC_HOST_LINK_H_

#include <memory>

#include "cachesvc/base/status.h"
#include "gpu/codec/gpu_link.h"

namespace crumb {

// All parts but slices and the wait; `queue`: null for a HostStreamQueue.
GpuLinkParts HostLinkParts(std::unique_ptr<StreamQueue> queue = nullptr);
absl::StatusOr<std::unique_ptr<GpuLink>> MakeHostLink();

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_HOST_LINK_H_
