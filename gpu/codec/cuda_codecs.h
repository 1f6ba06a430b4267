// Every codec of a part that a device can do. Control thread: waits for the device. Knows no CUDA
// type.
#ifndef CRUMB_GPU_CODEC_CUDA_CODECS_H_
#define CRUMB_GPU_CODEC_CUDA_CODECS_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cachesvc/base/identity.h"
#include "cachesvc/base/status.h"
#include "gpu/codec/gpu_codec.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

struct GpuCodecMade {
  CodecDescriptor descriptor;
  std::shared_ptr<const GpuCodec> codec;  // null: the CPU's codec serves it
  absl::Status status;  // why there is none, or why it only decodes (codec->encodes() is false)
};

// The raw one first, whether it is asked for or not, then one entry for each other descriptor, in
// their order.
std::vector<GpuCodecMade> MakeCudaCodecs(const PartShape& shape,
                                         absl::Span<const CodecDescriptor> descriptors,
                                         const std::shared_ptr<const RotationSet>& rotations,
                                         int device);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_CUDA_CODECS_H_
