// RotationSet: the calibrated data of one model that codecs need, immutable and hashed: per layer
// (or layer and kv head) the orthogonal R_K and R_V, and where a calibration gives them per kv head
// the query second moment M, the static mean of K, and the gain gamma. Loaded once, shared
// read-only; any thread.
#ifndef CRUMB_GPU_CODEC_ROTATION_SET_H_
#define CRUMB_GPU_CODEC_ROTATION_SET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/hash.h"
#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb {

// One tensor's rotation in one layer: `heads` matrices (1 = shared by all kv heads), row-major
// [heads][dim][dim] FP32 as calibrated; rows are right-multiplied, y = x R.
struct LayerRotation {
  uint32_t heads = 0;
  uint32_t dim = 0;
  std::vector<float> matrix;
};

struct RotationLayer {
  uint32_t layer_id = 0;  // global id
  LayerRotation k;        // heads = 0: none for this tensor (Hadamard is used)
  LayerRotation v;
  // Per kv head, or empty. Row-major [kv_heads][dim][dim] and [kv_heads][dim].
  uint32_t kv_heads = 0;
  std::vector<float> query_moment;  // M, post-RoPE
  std::vector<float> k_mean;        // m
};

class RotationSet {
 public:
  struct Contents {
    std::string model;
    std::string revision;
    std::string objective;              // e.g. "qqt_r_h_pbr / sst_r_h_pbr"
    std::string provenance;             // who calibrated on what, free text
    float gamma = 0.5f;                 // gain in {0, 0.5, 1}
    std::vector<RotationLayer> layers;  // strictly ascending layer_id
  };

  // Checks shapes, finiteness and orthogonality (max |R R^T - I| <= 5e-3); the error names layer,
  // tensor and figure.
  static absl::StatusOr<std::shared_ptr<const RotationSet>> Make(Contents contents);
  // The flat file format (docs/format.md): header, hashes per matrix, FP32 data. Untrusted input.
  static absl::StatusOr<std::shared_ptr<const RotationSet>> Parse(Bytes file);
  std::string Serialize() const;

  const Contents& contents() const { return contents_; }
  const Sha256& hash() const { return hash_; }               // of the flat file's content
  const RotationLayer* FindLayer(uint32_t layer_id) const;   // nullptr if absent
  static Sha256 MatrixHash(absl::Span<const float> matrix);  // of the FP32 bytes

 private:
  RotationSet() = default;
  Contents contents_;
  Sha256 hash_{};
};

inline constexpr float kOrthogonalityMax = 5e-3f;
inline constexpr uint32_t kRotationDimMax = 1024;
inline constexpr uint64_t kRotationFileBytesMax = 4ull << 30;

// Normalised Sylvester-Hadamard matrix, row-major; REQUIRES: dim is a power of two.
std::vector<float> HadamardMatrix(uint32_t dim);
// Bit reversal br(i), and the released column permutation for ascending eigenvalues.
std::vector<uint32_t> BitReversal(uint32_t dim);
std::vector<uint32_t> BitReversalPermutation(uint32_t dim);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROTATION_SET_H_
