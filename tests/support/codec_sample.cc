// Cuts pages and sets out of the committed arrays. Tests only.
#include "tests/support/codec_sample.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gpu/codec/bf16.h"

namespace crumb::testing {
namespace {

std::vector<float> Slice(const NpyArray& array, size_t index, size_t count) {
  const auto values = array.values<float>().subspan(index * count, count);
  return {values.begin(), values.end()};
}

// Second moment of the queries of one kv head.
std::vector<float> QueryMoment(absl::Span<const uint16_t> q, uint32_t head) {
  constexpr size_t kDim = kSampleDim;
  constexpr uint32_t kShare = kSampleQueryHeads / kSampleHeads;
  std::vector<double> sum(kDim * kDim, 0.0);
  for (size_t t = 0; t < kSampleTokens; ++t) {
    for (uint32_t i = 0; i < kShare; ++i) {
      const uint16_t* row = q.data() + (t * kSampleQueryHeads + head * kShare + i) * kDim;
      for (size_t a = 0; a < kDim; ++a) {
        for (size_t b = 0; b < kDim; ++b) {
          sum[a * kDim + b] += double{Bf16ToFloat(row[a])} * double{Bf16ToFloat(row[b])};
        }
      }
    }
  }
  std::vector<float> moment(kDim * kDim);
  for (size_t i = 0; i < moment.size(); ++i) {
    moment[i] = static_cast<float>(sum[i] / (kSampleTokens * kShare));
  }
  return moment;
}

}  // namespace

PartShape MakePart(const PartSpec& spec) {
  PartShape part;
  part.dtype = spec.dtype;
  part.page_tokens = spec.page_tokens;
  for (const uint32_t id : spec.layer_ids) {
    LayerShape layer;
    layer.layer_id = id;
    layer.head_first = spec.head_first;
    layer.heads = spec.heads;
    layer.k_dim = spec.k_dim;
    layer.v_dim = spec.v_dim;
    part.layers.push_back(layer);
    part.raw_bytes += uint64_t{spec.heads} * spec.page_tokens * (spec.k_dim + spec.v_dim) *
                      DtypeBytes(spec.dtype);
  }
  return part;
}

CodecSample::CodecSample()
    : sample_(NpzFile::OpenTestData("smollm2/smollm2_qkv_sample.npz")),
      rotations_(NpzFile::OpenTestData("smollm2/smollm2_rotations.npz")) {}

absl::Span<const uint16_t> CodecSample::Tensor(uint32_t layer, char which) const {
  return sample_[absl::StrCat("layer", layer, "_", std::string(1, which), "_bf16")]
      .values<uint16_t>();
}

std::vector<uint8_t> CodecSample::RawPage(const std::vector<uint32_t>& layers, uint32_t first,
                                          uint32_t tokens) const {
  CRUMB_CHECK(first + tokens <= kSampleTokens);
  std::vector<uint8_t> page;
  for (const uint32_t layer : layers) {
    for (const char which : {'k', 'v'}) {
      const absl::Span<const uint16_t> rows = Tensor(layer, which);
      for (size_t head = 0; head < kSampleHeads; ++head) {
        for (size_t t = first; t < first + tokens; ++t) {
          const auto* row = reinterpret_cast<const uint8_t*>(
              rows.data() + (t * kSampleHeads + head) * kSampleDim);
          page.insert(page.end(), row, row + 2 * kSampleDim);
        }
      }
    }
  }
  return page;
}

std::shared_ptr<const RotationSet> CodecSample::Rotations(const SetOptions& options) const {
  constexpr size_t kMatrix = size_t{kSampleDim} * kSampleDim;
  const bool per_head = options.grouping == Grouping::kPerHead;
  RotationSet::Contents contents;
  contents.model = "SmolLM2-135M";
  contents.revision = "sample";
  contents.gamma = options.gamma;
  for (const uint32_t id : kSampleLayers) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.kv_heads = kSampleHeads;
    layer.k_dim = kSampleDim;
    const uint32_t heads = per_head ? kSampleHeads : 1;
    const char* suffix = per_head ? "_head" : "_layer";
    layer.k = {heads, kSampleDim,
               Slice(rotations_[absl::StrCat("k", suffix)], id, heads * kMatrix)};
    layer.v = {heads, kSampleDim,
               Slice(rotations_[absl::StrCat("v", suffix)], id, heads * kMatrix)};
    if (options.k_mean) {
      layer.k_mean = Slice(rotations_["k_mean"], id, size_t{kSampleHeads} * kSampleDim);
    }
    for (uint32_t head = 0; options.query_moment && head < kSampleHeads; ++head) {
      const std::vector<float> moment = QueryMoment(Tensor(id, 'q'), head);
      layer.query_moment.insert(layer.query_moment.end(), moment.begin(), moment.end());
    }
    contents.layers.push_back(std::move(layer));
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

}  // namespace crumb::testing
