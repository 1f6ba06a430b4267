// Reads RotationZoo .pt files (torch.save zips) without torch and without executing pickle: a
// bounded parser of the few opcodes and globals those files use. Everything else is refused by
// name. Control path; any thread.
#ifndef CRUMB_GPU_CODEC_ROTATION_IMPORT_H_
#define CRUMB_GPU_CODEC_ROTATION_IMPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

struct PtLayer {
  uint32_t heads = 0;  // 1 for [d,d], Hkv for [Hkv,d,d]
  uint32_t dim = 0;
  std::vector<float> rotation;     // row-major [heads][dim][dim]
  std::vector<float> eigenvalues;  // may be empty
  std::vector<float> k_mean;       // format 3 companions; may be empty
};

struct PtRotationFile {
  int format_version = 0;
  std::string objective;
  std::string source_grouping;
  std::map<uint32_t, PtLayer> layers;
};

// `name` is only for messages. INVALID_ARGUMENT: truncated, hostile, not a rotation file,
// non-orthogonal companions (q_rotation / o_rotation).
absl::StatusOr<PtRotationFile> ParsePtRotation(Bytes file, const std::string& name);
absl::StatusOr<PtRotationFile> LoadPtRotation(const std::string& path);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROTATION_IMPORT_H_
