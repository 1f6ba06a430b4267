// Tries each. Control thread.
#include "gpu/codec/cuda_codecs.h"

#include <utility>

#include "gpu/codec/cuda_codec.h"
#include "gpu/codec/cuda_raw_codec.h"

namespace crumb {

std::vector<GpuCodecMade> MakeCudaCodecs(const PartShape& shape,
                                         absl::Span<const CodecDescriptor> descriptors,
                                         const std::shared_ptr<const RotationSet>& rotations,
                                         int device) {
  std::vector<GpuCodecMade> made;
  auto raw = CudaRawCodec::Create(shape, device);
  made.push_back({.descriptor = {}, .codec = nullptr, .status = raw.status()});
  if (raw.ok()) made[0].codec = std::move(*raw);
  auto packed = CudaCodec::CreateAll(shape, descriptors, rotations, device);
  for (size_t i = 0; i < descriptors.size(); ++i) {
    if (descriptors[i].kind == CodecKind::kRaw) continue;
    GpuCodecMade& one = made.emplace_back();
    one.descriptor = descriptors[i];
    auto& codec = packed[i];
    one.status = codec.ok() ? (*codec)->encode_status() : codec.status();
    if (codec.ok()) one.codec = std::move(*codec);
  }
  return made;
}

}  // namespace crumb
