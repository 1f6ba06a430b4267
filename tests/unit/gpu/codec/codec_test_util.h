// What the page codec tests share: sets for any dim, pages of chosen rows, one call to encode.
#ifndef CRUMB_TESTS_UNIT_GPU_CODEC_CODEC_TEST_UTIL_H_
#define CRUMB_TESTS_UNIT_GPU_CODEC_CODEC_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"
#include "tests/support/codec_sample.h"
#include "tests/unit/gpu/codec/tested_backend.h"

namespace crumb::codec_test {

inline const std::vector<CodecKind>& LossyKinds() {
  static const std::vector<CodecKind> kinds = {CodecKind::kCrumbInt2,    CodecKind::kCrumbK3V2,
                                               CodecKind::kCrumbInt4,    CodecKind::kOscarInt2,
                                               CodecKind::kHadamardInt2, CodecKind::kNaiveInt2,
                                               CodecKind::kInt4,         CodecKind::kHadamardInt4};
  return kinds;
}

inline double Uniform(Rng* rng) {
  return static_cast<double>(rng->Below(1u << 24)) / (1u << 23) - 1.0;
}

// An orthogonal matrix of any dim: the reflection I - 2 v v^T / v^T v.
inline std::vector<float> Reflection(uint32_t dim, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> v(dim);
  double norm = 0.0;
  for (double& value : v) {
    value = Uniform(&rng) + 0.1;
    norm += value * value;
  }
  std::vector<float> matrix(size_t{dim} * dim);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) {
      matrix[i * dim + j] = static_cast<float>((i == j ? 1.0 : 0.0) - 2.0 * v[i] * v[j] / norm);
    }
  }
  return matrix;
}

struct SetSpec {
  std::vector<uint32_t> layer_ids = {0};
  uint32_t k_dim = 64;
  uint32_t v_dim = 64;
  uint32_t heads = 1;     // rotations per layer
  uint32_t kv_heads = 0;  // calibrated heads
  bool k_mean = false;
  bool query_moment = false;
};

inline std::shared_ptr<const RotationSet> MakeSet(const SetSpec& spec) {
  RotationSet::Contents contents;
  contents.model = "test";
  contents.revision = "1";
  contents.gamma = 1.0f;
  for (const uint32_t id : spec.layer_ids) {
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {spec.heads, spec.k_dim, {}};
    layer.v = {spec.heads, spec.v_dim, {}};
    for (uint32_t head = 0; head < spec.heads; ++head) {
      const auto k = Reflection(spec.k_dim, 100 + id * 10 + head);
      const auto v = Reflection(spec.v_dim, 900 + id * 10 + head);
      layer.k.matrix.insert(layer.k.matrix.end(), k.begin(), k.end());
      layer.v.matrix.insert(layer.v.matrix.end(), v.begin(), v.end());
    }
    layer.kv_heads = spec.kv_heads;
    layer.k_dim = spec.k_dim;
    Rng rng(id + 5);
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      for (uint32_t i = 0; spec.k_mean && i < spec.k_dim; ++i) {
        layer.k_mean.push_back(static_cast<float>(Uniform(&rng)));
      }
      for (uint32_t i = 0; spec.query_moment && i < spec.k_dim; ++i) {
        for (uint32_t j = 0; j < spec.k_dim; ++j) {
          layer.query_moment.push_back(i == j ? 1.0f + static_cast<float>(i % 7 + head) : 0.25f);
        }
      }
    }
    contents.layers.push_back(std::move(layer));
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

// BF16 values of a bell-like shape, with an offset per channel as keys have.
inline std::vector<uint8_t> RandomPage(uint64_t bytes, uint64_t seed, double offset = 1.0) {
  Rng rng(seed);
  std::vector<uint8_t> page(bytes);
  for (size_t i = 0; i + 1 < page.size(); i += 2) {
    const double value = Uniform(&rng) + Uniform(&rng) + Uniform(&rng) +
                         offset * std::sin(static_cast<double>(i % 128));
    const uint16_t bits = FloatToBf16(static_cast<float>(value));
    std::memcpy(page.data() + i, &bits, 2);
  }
  return page;
}

inline std::vector<uint8_t> ConstantPage(uint64_t bytes, float value) {
  std::vector<uint8_t> page(bytes);
  const uint16_t bits = FloatToBf16(value);
  for (size_t i = 0; i + 1 < page.size(); i += 2) std::memcpy(page.data() + i, &bits, 2);
  return page;
}

inline float Element(const std::vector<uint8_t>& page, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, page.data() + 2 * index, 2);
  return Bf16ToFloat(bits);
}

inline void SetElement(std::vector<uint8_t>* page, size_t index, uint16_t bits) {
  std::memcpy(page->data() + 2 * index, &bits, 2);
}

inline double RelativeError(const std::vector<uint8_t>& raw, const std::vector<uint8_t>& back) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    const double e = double{Element(raw, i)} - double{Element(back, i)};
    error += e * e;
    energy += double{Element(raw, i)} * double{Element(raw, i)};
  }
  return error / energy;
}

// A codec with its scratch and the buffers of one page.
struct Bench {
  PartShape part;
  std::unique_ptr<PageCodec> codec;
  std::unique_ptr<PageCodec::Scratch> scratch;
  std::vector<uint8_t> payload;
  std::vector<uint8_t> back;

  Bench(const PartShape& shape, const CodecDescriptor& descriptor,
        std::shared_ptr<const RotationSet> set)
      : part(shape) {
    auto made = PageCodec::Create(shape, descriptor, std::move(set), TestedBackend());
    EXPECT_TRUE(made.ok()) << made.status();
    CRUMB_CHECK(made.ok());
    codec = std::move(*made);
    scratch = codec->MakeScratch();
    payload.assign(codec->payload_bytes(), 0xee);
    back.assign(shape.raw_bytes, 0xee);
  }
  EncodeReport Encode(const std::vector<uint8_t>& raw, uint32_t tokens,
                      Effort effort = Effort::kNormal) {
    return codec->Encode(raw, tokens, effort, absl::MakeSpan(payload), scratch.get());
  }
  bool Decode(uint32_t tokens, Frame frame = Frame::kOriginal) {
    return codec->Decode(payload, tokens, frame, absl::MakeSpan(back), scratch.get());
  }
};

// The default of a kind, with the set where the kind takes one.
inline CodecDescriptor DefaultOf(CodecKind kind, const std::shared_ptr<const RotationSet>& set) {
  return CodecDescriptor::Default(kind, set != nullptr ? set->hash() : Sha256{});
}

}  // namespace crumb::codec_test

#endif  // CRUMB_TESTS_UNIT_GPU_CODEC_CODEC_TEST_UTIL_H_
