// What a codec does to attention, measured on the sample: queries read keys j of the sink
// (j < 64) and of the recent window (j > t - 256) exactly and those between from the restored
// pages. Causal softmax, grouped queries, logits include 1/sqrt(d). Any thread.
#ifndef CRUMB_CLIENT_DEMO_ATTENTION_ERROR_H_
#define CRUMB_CLIENT_DEMO_ATTENTION_ERROR_H_

#include <cstdint>
#include <vector>

#include "client/demo/sample.h"

namespace crumb::demo {

inline constexpr uint32_t kSinkTokens = 64;
inline constexpr uint32_t kRecentTokens = 256;
inline constexpr uint32_t kFirstQuery = kSinkTokens + kRecentTokens;

// Means over the layers.
struct AttentionError {
  double logit = 0.0;          // ||E|| / ||S|| over the pairs that read restored keys
  double logit_centred = 0.0;  // the same without each query's mean, which a softmax does not see
  double output = 0.0;         // ||o' - o|| / ||o|| of the attention outputs
};

// The exact side, computed once.
class AttentionReference {
 public:
  // REQUIRES: sample.tokens > kFirstQuery.
  explicit AttentionReference(const Sample& sample);

  // REQUIRES: `restored` has the sample's shape; its queries are not read.
  AttentionError Compare(const Sample& restored) const;

 private:
  struct Layer {
    std::vector<float> q, k, v;   // [head][token][dim]
    std::vector<double> logits;   // [query head][query][key]
    std::vector<double> outputs;  // [query head][query][dim]
  };
  void Attend(Layer& layer) const;
  AttentionError CompareLayer(const Layer& exact, const SampleLayer& restored) const;
  std::vector<float> HeadMajor(const std::vector<uint16_t>& values, uint32_t heads) const;
  size_t query_count() const { return tokens_ - kFirstQuery; }

  uint32_t tokens_, q_heads_, kv_heads_, dim_;
  std::vector<Layer> layers_;
};

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_ATTENTION_ERROR_H_
