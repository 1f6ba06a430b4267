// Codecs of layouts for the GPUs in use: one of each descriptor, part and device, shared by the
// layouts that need the same. One thread: control.
#ifndef CRUMB_CACHESVC_SERVER_GPU_CODECS_H_
#define CRUMB_CACHESVC_SERVER_GPU_CODECS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/server/gpus.h"

namespace crumb {

class GpuCodecs {
 public:
  // `gpus`: not used before Use.
  explicit GpuCodecs(Gpus* gpus) : gpus_(gpus) {}

  // From here on codecs are made for that device, too. False: it was one of them already.
  bool Use(int device);
  const std::vector<int>& devices() const { return devices_; }

  // Appends what GPUs can do of `descriptors`, and of raw pages, to `out`, each once, and to
  // `notes` what they cannot, with the reason.
  void Build(const PartShape& shape, absl::Span<const CodecDescriptor> descriptors,
             const std::shared_ptr<const RotationSet>& rotations,
             std::vector<std::shared_ptr<const GpuCodec>>* out, std::vector<std::string>* notes);

 private:
  void BuildOn(const GpuCodecsWish& order, std::vector<std::shared_ptr<const GpuCodec>>* out,
               std::vector<std::string>* notes);

  Gpus* gpus_;
  std::vector<int> devices_;
  struct Known {
    std::weak_ptr<const GpuCodec> codec;
    std::string note;
  };
  std::map<std::string, Known> known_;
};

}  // namespace crumb

#endif  // CRUMB_CACHESVC_SERVER_GPU_CODECS_H_
