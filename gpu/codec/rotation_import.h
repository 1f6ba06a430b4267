// Reads RotationZoo .pt files (torch.save zips) without torch and without executing pickle: a
// bounded parser of the few opcodes and globals those files use. Everything else is refused by
// name. Control path; any thread.
#ifndef CRUMB_GPU_CODEC_ROTATION_IMPORT_H_
#define CRUMB_GPU_CODEC_ROTATION_IMPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"
#include "gpu/codec/rotation_set.h"

namespace crumb {

struct PtLayer {
  uint32_t heads = 0;  // 1 for [d,d], Hkv for [Hkv,d,d]
  uint32_t dim = 0;
  std::vector<float> rotation;     // row-major [heads][dim][dim]
  std::vector<float> eigenvalues;  // as stored; may be empty
  uint32_t mean_heads = 0;         // 1 for [d], Hkv for [Hkv,d], 0 = no k_mean
  std::vector<float> k_mean;       // format 3 companion; may be empty
};

struct PtRotationFile {
  std::string name;    // what messages and the provenance call it
  Sha256 file_hash{};  // of the whole .pt file
  int format_version = 0;
  std::string objective;
  std::string source_grouping;
  std::map<uint32_t, PtLayer> layers;
};

// `name` is only for messages and provenance. INVALID_ARGUMENT: truncated, hostile, not a rotation
// file, a matrix that is not orthogonal, non-orthogonal companions (q_rotation / o_rotation).
absl::StatusOr<PtRotationFile> ParsePtRotation(Bytes file, const std::string& name);
absl::StatusOr<PtRotationFile> LoadPtRotation(const std::string& path);

struct CombineOptions {
  std::string model;     // required
  std::string revision;  // required
  std::string note{};    // appended to the provenance
  float gamma = 0.5f;    // nothing is known about the gain of a published set
};

// One rotation set out of a K file and a V file. INVALID_ARGUMENT: the files are swapped, or hold
// different layers.
absl::StatusOr<RotationSet::Contents> CombinePtFiles(const PtRotationFile& k,
                                                     const PtRotationFile& v,
                                                     const CombineOptions& options);

inline constexpr uint64_t kPtFileBytesMax = 1ull << 30;
inline constexpr uint64_t kPtPickleBytesMax = 16ull << 20;

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROTATION_IMPORT_H_
