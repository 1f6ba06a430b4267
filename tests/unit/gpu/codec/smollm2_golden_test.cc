// Every codec of the SmolLM2 golden file, bit for bit: codes, FP32 scale and zero, decoded rows.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/hash.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using nlohmann::json;
using testing::CodecSample;

struct Case {
  const char* name;
  CodecKind kind;
  CodecSample::Grouping grouping = CodecSample::Grouping::kPerLayer;
  uint32_t group = 0;
  float clip_k = 0.0f;
  float clip_v = 0.0f;
  bool k_mean = false;
};

constexpr Case kCases[] = {
    {.name = "naive-g64", .kind = CodecKind::kNaiveInt2},
    {.name = "hadamard-g64-clip",
     .kind = CodecKind::kHadamardInt2,
     .clip_k = 0.96f,
     .clip_v = 0.92f},
    {.name = "oscar-layer-g64-clip",
     .kind = CodecKind::kOscarInt2,
     .clip_k = 0.96f,
     .clip_v = 0.92f},
    {.name = "oscar-head-g64-clip",
     .kind = CodecKind::kOscarInt2,
     .grouping = CodecSample::Grouping::kPerHead,
     .clip_k = 0.96f,
     .clip_v = 0.92f},
    {.name = "oscar-head-g32-clip",
     .kind = CodecKind::kOscarInt2,
     .grouping = CodecSample::Grouping::kPerHead,
     .group = 32,
     .clip_k = 0.96f,
     .clip_v = 0.92f},
    {.name = "oscar-layer-g64-clip0.92-kmean",
     .kind = CodecKind::kOscarInt2,
     .clip_k = 0.92f,
     .clip_v = 0.92f,
     .k_mean = true},
};

// [head][token][width] blocks to [token][head][width], as the golden file hashes them.
std::string ShaByToken(Bytes first, size_t head_stride, size_t row_bytes) {
  std::vector<uint8_t> out;
  for (size_t t = 0; t < testing::kSampleTokens; ++t) {
    for (size_t h = 0; h < testing::kSampleHeads; ++h) {
      const Bytes row = first.subspan(h * head_stride + t * row_bytes, row_bytes);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return Hex(Sha256Of(out));
}

double RelativeError(Bytes raw, Bytes back) {
  double error = 0.0, energy = 0.0;
  for (size_t i = 0; i < raw.size(); i += 2) {
    uint16_t a, b;
    std::memcpy(&a, raw.data() + i, 2);
    std::memcpy(&b, back.data() + i, 2);
    const double x = double{Bf16ToFloat(a)};
    const double e = double{Bf16ToFloat(b)} - x;
    error += e * e;
    energy += x * x;
  }
  return error / energy;
}

TEST(SmolLm2GoldenTest, EveryVector) {
  const json golden = json::parse(testing::ReadTestData("smollm2/smollm2_sample_golden.json"));
  const CodecSample sample;
  size_t checked = 0;
  for (const Case& c : kCases) {
    CodecSample::SetOptions options;
    options.grouping = c.grouping;
    options.k_mean = c.k_mean;
    const auto set = sample.Rotations(options);
    CodecDescriptor d = CodecDescriptor::Default(c.kind, set->hash());
    d.group = c.group;
    d.clip_k = c.clip_k;
    d.clip_v = c.clip_v;
    d.clip_method = c.clip_k != 0.0f ? ClipMethod::kSort : ClipMethod::kNone;
    d.meta = MetaForm::kFp32;
    if (c.k_mean) d.centring = Centring::kStaticMean;
    for (const uint32_t layer : testing::kSampleLayers) {
      testing::PartSpec spec;
      spec.layer_ids = {layer};
      spec.heads = testing::kSampleHeads;
      spec.page_tokens = testing::kSampleTokens;
      const PartShape part = testing::MakePart(spec);
      auto codec = PageCodec::Create(part, d, set, CodecBackend::kReference);
      ASSERT_TRUE(codec.ok()) << codec.status();
      auto layout = PayloadLayout::Make(part, d);
      ASSERT_TRUE(layout.ok());
      const auto scratch = (*codec)->MakeScratch();
      const std::vector<uint8_t> raw = sample.RawPage({layer}, 0, testing::kSampleTokens);
      std::vector<uint8_t> payload((*codec)->payload_bytes());
      std::vector<uint8_t> back(raw.size());
      const EncodeReport report = (*codec)->Encode(raw, spec.page_tokens, Effort::kNormal,
                                                   absl::MakeSpan(payload), scratch.get());
      ASSERT_EQ(report.result, BlockResult::kOk);
      ASSERT_TRUE((*codec)->Decode(payload, spec.page_tokens, Frame::kOriginal,
                                   absl::MakeSpan(back), scratch.get()));
      for (const TensorLayout& tensor : layout->tensors()) {
        const std::string key = absl::StrCat("layer", layer, tensor.is_v ? ".v." : ".k.", c.name);
        SCOPED_TRACE(key);
        ASSERT_TRUE(golden.contains(key));
        const json& want = golden[key];
        const Bytes block = absl::MakeConstSpan(payload).subspan(tensor.offset);
        EXPECT_EQ(ShaByToken(block, tensor.head_bytes, tensor.code_row_bytes),
                  want["codes_planar_sha256"].get<std::string>());
        EXPECT_EQ(Hex(block.first(tensor.code_row_bytes)),
                  want["first_row_codes"].get<std::string>());
        EXPECT_EQ(
            ShaByToken(block.subspan(tensor.meta_offset), tensor.head_bytes, tensor.meta_row_bytes),
            want["scale_zero_fp32_sha256"].get<std::string>());
        const size_t bytes = tensor.raw_head_bytes * tensor.heads;
        const Bytes out = absl::MakeConstSpan(back).subspan(tensor.raw_offset, bytes);
        EXPECT_EQ(ShaByToken(out, tensor.raw_head_bytes, tensor.raw_row_bytes),
                  want["dequant_bf16_sha256"].get<std::string>());
        EXPECT_NEAR(RelativeError(absl::MakeConstSpan(raw).subspan(tensor.raw_offset, bytes), out),
                    want["rel_mse"].get<double>(), 1e-9);
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, golden.size());
  std::printf("smollm2 golden: %zu of %zu vectors checked bit for bit\n", checked, golden.size());
}

// Whole payloads and decoded pages of one real page, frozen: a change of any byte is a change of
// the format, or of what an effort level means.
TEST(SmolLm2GoldenTest, PayloadsAreFrozen) {
  struct Frozen {
    CodecKind kind;
    Effort effort;
    const char* payload;
    const char* page;
  };
  constexpr Frozen kFrozen[] = {
      {CodecKind::kRaw, Effort::kNormal, "e5c44556fba97588", "e5c44556fba97588"},
      {CodecKind::kCrumbInt2, Effort::kDraft, "e87e7f9d48c1f9ab", "eb7384cf798611c5"},
      {CodecKind::kCrumbInt2, Effort::kNormal, "bfe6c022228eb873", "401c42e95c7a995e"},
      {CodecKind::kCrumbInt2, Effort::kBest, "4a47d37f50ebd7b3", "d48cd0e76c91b07e"},
      {CodecKind::kCrumbK3V2, Effort::kNormal, "41ecf3154251f159", "d21de4e438853179"},
      {CodecKind::kCrumbInt4, Effort::kNormal, "9fcfdabb3f5c6303", "7fa0ef14dd367273"},
      {CodecKind::kOscarInt2, Effort::kNormal, "de1d13b2230e20bb", "89b60b41f2465b7d"},
      {CodecKind::kHadamardInt2, Effort::kNormal, "55930ee4cd118eff", "a0a0464010823c9e"},
      {CodecKind::kNaiveInt2, Effort::kNormal, "5cfccd215bdb2485", "1968fbe043253298"},
      {CodecKind::kInt4, Effort::kNormal, "91231f7f9eae411b", "73e50b45f09f0893"},
      {CodecKind::kHadamardInt4, Effort::kNormal, "edb8cd4b64fc7206", "eac9628f6fbbe36c"},
  };
  const CodecSample sample;
  const auto set = RotationSet::Load(testing::TestDataPath("smollm2/smollm2_sample.rot"));
  ASSERT_TRUE(set.ok()) << set.status();
  testing::PartSpec spec;
  spec.layer_ids = {0, 15, 29};
  spec.heads = testing::kSampleHeads;
  const PartShape part = testing::MakePart(spec);
  const std::vector<uint8_t> raw = sample.RawPage(spec.layer_ids, 128, spec.page_tokens);
  const auto hex = [](const std::vector<uint8_t>& bytes) {
    return absl::StrCat(absl::Hex(Xxh3(bytes), absl::kZeroPad16));
  };
  for (const Frozen& frozen : kFrozen) {
    SCOPED_TRACE(absl::StrCat(ToString(frozen.kind), " ", ToString(frozen.effort)));
    const auto codec =
        PageCodec::Create(part, CodecDescriptor::Default(frozen.kind, (*set)->hash()), *set,
                          CodecBackend::kReference);
    ASSERT_TRUE(codec.ok()) << codec.status();
    const auto scratch = (*codec)->MakeScratch();
    std::vector<uint8_t> payload((*codec)->payload_bytes()), back(raw.size());
    const EncodeReport report = (*codec)->Encode(raw, spec.page_tokens, frozen.effort,
                                                 absl::MakeSpan(payload), scratch.get());
    EXPECT_EQ(report.result, BlockResult::kOk);
    EXPECT_TRUE(report.fits);
    ASSERT_TRUE((*codec)->Decode(payload, spec.page_tokens, Frame::kOriginal, absl::MakeSpan(back),
                                 scratch.get()));
    EXPECT_EQ(hex(payload), frozen.payload);
    EXPECT_EQ(hex(back), frozen.page);
  }
}

}  // namespace
}  // namespace crumb
