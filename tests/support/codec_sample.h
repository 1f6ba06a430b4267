// Parts, rotation sets and pages of the committed SmolLM2 sample, as codec tests and bars use them.
// Tests only; aborts on data that is not as described in tests/data/smollm2/README.md.
#ifndef CRUMB_TESTS_SUPPORT_CODEC_SAMPLE_H_
#define CRUMB_TESTS_SUPPORT_CODEC_SAMPLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cachesvc/base/identity.h"
#include "gpu/codec/rotation_set.h"
#include "tests/support/npz.h"

namespace crumb::testing {

struct PartSpec {
  std::vector<uint32_t> layer_ids = {0};
  uint32_t heads = 1;
  uint32_t k_dim = 64;
  uint32_t v_dim = 64;
  uint32_t page_tokens = 64;
  uint32_t head_first = 0;
  RawDtype dtype = RawDtype::kBf16;
};
PartShape MakePart(const PartSpec& spec);

inline constexpr uint32_t kSampleLayers[] = {0, 15, 29};
inline constexpr uint32_t kSampleHeads = 3;
inline constexpr uint32_t kSampleQueryHeads = 9;
inline constexpr uint32_t kSampleDim = 64;
inline constexpr uint32_t kSampleTokens = 512;

// The sample's arrays, read once.
class CodecSample {
 public:
  CodecSample();

  // `which` is 'q', 'k' or 'v'; BF16 bits [token][head][dim].
  absl::Span<const uint16_t> Tensor(uint32_t layer, char which) const;
  // A raw page [layer][K|V][head][token][dim] of `layers` from token `first` on.
  std::vector<uint8_t> RawPage(const std::vector<uint32_t>& layers, uint32_t first,
                               uint32_t tokens) const;

  enum class Grouping { kPerLayer, kPerHead };
  struct SetOptions {
    Grouping grouping = Grouping::kPerLayer;
    bool k_mean = false;
    bool query_moment = false;  // second moment of the sample's own queries
    float gamma = 1.0f;
  };
  // All three layers.
  std::shared_ptr<const RotationSet> Rotations(const SetOptions& options) const;

  const NpzFile& rotations() const { return rotations_; }

 private:
  NpzFile sample_;
  NpzFile rotations_;
};

}  // namespace crumb::testing

#endif  // CRUMB_TESTS_SUPPORT_CODEC_SAMPLE_H_
