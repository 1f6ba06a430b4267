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
      auto codec = PageCodec::Create(part, d, set);
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

}  // namespace
}  // namespace crumb
