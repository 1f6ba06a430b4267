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

#include "absl/types/span.h"
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
  // M and m per kv head (kv_heads = 1: shared by all), or empty. Row-major
  // [kv_heads][k_dim][k_dim] and [kv_heads][k_dim]. k_dim = 0 stands for k.dim.
  uint32_t kv_heads = 0;
  uint32_t k_dim = 0;
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
    float gamma = 0.5f;                 // gain in [0, 1]
    std::vector<RotationLayer> layers;  // strictly ascending layer_id
  };

  // Checks shapes, finiteness, orthogonality (max |R R^T - I| <= 5e-3), and that M is symmetric
  // and positive semi-definite; the error names layer, tensor and figure. Fills in k_dim, and
  // kv_heads = 0 where a layer has neither M nor m.
  static absl::StatusOr<std::shared_ptr<const RotationSet>> Make(Contents contents);
  // The flat file format (docs/format.md): header, hashes per matrix, FP32 data. Untrusted input.
  static absl::StatusOr<std::shared_ptr<const RotationSet>> Parse(Bytes file);
  // Reads at most kRotationFileBytesMax from `path`, then Parse; errors name the path.
  static absl::StatusOr<std::shared_ptr<const RotationSet>> Load(const std::string& path);
  std::string Serialize() const;

  const Contents& contents() const { return contents_; }
  const Sha256& hash() const { return hash_; }              // of the flat file's content
  const RotationLayer* FindLayer(uint32_t layer_id) const;  // nullptr if absent
  // Every layer has M and m: what crumb-int2 needs to be the default.
  bool calibrated() const;
  static Sha256 MatrixHash(absl::Span<const float> matrix);  // of the FP32 bytes

 private:
  RotationSet() = default;
  Contents contents_;
  Sha256 hash_{};
};

inline constexpr float kOrthogonalityMax = 5e-3f;
inline constexpr uint32_t kRotationDimMax = 1024;
inline constexpr uint32_t kRotationHeadsMax = 1024;
inline constexpr uint32_t kRotationLayersMax = 1024;
inline constexpr uint32_t kRotationNameBytesMax = 1024;         // model, revision, objective
inline constexpr uint32_t kRotationProvenanceBytesMax = 16384;  // provenance
inline constexpr uint64_t kRotationFileBytesMax = 1ull << 30;

// max |R R^T - I| of one matrix; infinity if an element is not finite.
// REQUIRES: matrix.size() == dim * dim.
double OrthogonalityError(absl::Span<const float> matrix, uint32_t dim);

// Normalised Sylvester-Hadamard matrix, row-major; REQUIRES: dim is a power of two.
std::vector<float> HadamardMatrix(uint32_t dim);
// Bit reversal br(i), and the released column permutation for ascending eigenvalues (the bitwise
// complement of br). REQUIRES: dim is a power of two.
std::vector<uint32_t> BitReversal(uint32_t dim);
std::vector<uint32_t> BitReversalPermutation(uint32_t dim);

}  // namespace crumb

#endif  // CRUMB_GPU_CODEC_ROTATION_SET_H_
