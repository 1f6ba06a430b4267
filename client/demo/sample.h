// The KV sample that the demo puts and gets: real queries, keys and values of a few layers of a
// small model (tests/data/smollm2), cut into pages of 64 tokens in the canonical raw order.
// Plain data; any thread.
#ifndef CRUMB_CLIENT_DEMO_SAMPLE_H_
#define CRUMB_CLIENT_DEMO_SAMPLE_H_

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "cachesvc/base/status.h"
#include "cachesvc/base/types.h"

namespace crumb::demo {

inline constexpr uint32_t kPageTokens = 64;

// BF16 bits, [token][head][dim].
struct SampleLayer {
  uint32_t layer_id = 0;
  std::vector<uint16_t> q, k, v;
};

struct Sample {
  uint32_t tokens = 0, q_heads = 0, kv_heads = 0, dim = 0;
  std::vector<SampleLayer> layers;
  std::vector<int32_t> token_ids;

  uint32_t page_count() const { return tokens / kPageTokens; }
  uint64_t page_bytes() const {
    return layers.size() * 2ull * kv_heads * kPageTokens * dim * sizeof(uint16_t);
  }
};

// Reads smollm2_qkv_sample.npz below `folder`. NOT_FOUND or INVALID_ARGUMENT name the file and the
// array that does not fit.
absl::StatusOr<Sample> LoadSample(const std::string& folder);

// Copies page `page` into or out of the canonical raw order [layer][K|V][head][token][dim].
// REQUIRES: page < page_count(), raw.size() == page_bytes().
void WritePage(const Sample& sample, uint32_t page, MutableBytes raw);
void ReadPage(Bytes raw, uint32_t page, Sample& sample);

// One external key per page: a hash of all tokens up to the page's end, as engines make them.
std::vector<std::string> PrefixKeys(const Sample& sample);

inline float FloatOfBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace crumb::demo

#endif  // CRUMB_CLIENT_DEMO_SAMPLE_H_
