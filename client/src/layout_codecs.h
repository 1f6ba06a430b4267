// LayoutCodecs: what a worker needs to pack and unpack a layout's pages itself, as the daemon says
// it: descriptors, rotation sets, and which pages may be put packed. What comes from the daemon is
// untrusted: every length is checked before it is believed. One thread.
#ifndef CRUMB_CLIENT_SRC_LAYOUT_CODECS_H_
#define CRUMB_CLIENT_SRC_LAYOUT_CODECS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "crumb/v1/cache.pb.h"
#include "gpu/codec/descriptor.h"
#include "gpu/codec/rotation_set.h"

namespace crumb::client {

struct LayoutCodecs {
  CodecDescriptor put;
  std::vector<CodecDescriptor> readers;  // `put` among them
  Effort effort = Effort::kNormal;
  bool packs_known = false;    // pages that say where they start may be put packed
  bool packs_unknown = false;  // the others may
  std::vector<std::shared_ptr<const RotationSet>> rotations;

  // Null: none of that hash, or the descriptor names none.
  std::shared_ptr<const RotationSet> FindRotations(const CodecDescriptor& descriptor) const;
};

// From the chunks of GetCodecs.
class CodecsReader {
 public:
  absl::Status Take(const v1::CodecsChunk& chunk);
  // DATA_LOSS: something is missing, or a set is not what a descriptor names.
  absl::StatusOr<LayoutCodecs> Finish();

 private:
  absl::Status TakeHeader(const v1::CodecsHeader& header);

  bool begun_ = false;
  LayoutCodecs codecs_;
  std::vector<uint64_t> file_bytes_;
  uint64_t bytes_ = 0;  // of all files
  std::string data_;
};

}  // namespace crumb::client

#endif  // CRUMB_CLIENT_SRC_LAYOUT_CODECS_H_
