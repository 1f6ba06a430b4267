// A cache in front of the GPUs.
#include "cachesvc/server/gpu_codecs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cachesvc/server/codec_choice.h"

namespace crumb {
namespace {

std::string NoteOf(const GpuCodecMade& made) {
  if (made.status.ok()) return {};
  return absl::StrCat("on the GPU ", ToString(made.descriptor.kind),
                      made.codec == nullptr ? " is not there: " : " is read and not written: ",
                      std::string(made.status.message()));
}

}  // namespace

bool GpuCodecs::Use(int device) {
  if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) return false;
  devices_.push_back(device);
  return true;
}

void GpuCodecs::BuildOn(const GpuCodecsWish& order,
                        std::vector<std::shared_ptr<const GpuCodec>>* out,
                        std::vector<std::string>* notes) {
  const auto key = [shape = ShapeKey(*order.shape), &order](const CodecDescriptor& descriptor) {
    return absl::StrCat(order.device, "/", descriptor.id(), "/", shape);
  };
  std::vector<CodecDescriptor> wanted = {CodecDescriptor::Default(CodecKind::kRaw, Sha256{})};
  wanted.insert(wanted.end(), order.descriptors.begin(), order.descriptors.end());
  GpuCodecsWish missing = order;
  std::vector<CodecDescriptor> absent;
  const auto add = [&](const Known& known) {
    if (!known.note.empty()) notes->push_back(known.note);
    const auto codec = known.codec.lock();
    if (codec != nullptr && std::find(out->begin(), out->end(), codec) == out->end()) {
      out->push_back(codec);
    }
  };
  for (const CodecDescriptor& descriptor : wanted) {
    const auto known = known_.find(key(descriptor));
    if (known != known_.end() && !known->second.codec.expired()) {
      add(known->second);
    } else {
      absent.push_back(descriptor);
    }
  }
  if (absent.empty()) return;
  missing.descriptors = absent;
  for (const GpuCodecMade& made : gpus_->MakeCodecs(missing)) {
    Known& known = known_[key(made.descriptor)];
    if (!known.codec.expired()) continue;  // raw pages, which are always there
    known = {.codec = made.codec, .note = NoteOf(made)};
    add(known);
  }
}

void GpuCodecs::Build(const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
                      const std::shared_ptr<const RotationSet>& rotations,
                      std::vector<std::shared_ptr<const GpuCodec>>* out,
                      std::vector<std::string>* notes) {
  std::erase_if(known_, [](const auto& entry) { return entry.second.codec.expired(); });
  for (const int device : devices_) {
    BuildOn({.device = device, .shape = &shape, .descriptors = descriptors, .rotations = rotations},
            out, notes);
  }
}

}  // namespace crumb
