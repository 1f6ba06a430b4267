// gpu/codec against the vectors of an independent OSCAR implementation: G4 hand row, G5 clip and
// group cases, G6 constant rows, G7 a whole page, and the decoding of Lloyd-Max rows. (G1 and G3,
// permutations and composition, are in rotation_golden_test.)
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cachesvc/base/bytes.h"
#include "cachesvc/base/hash.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"
#include "gpu/codec/quantise_affine.h"
#include "gpu/codec/rotate.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using nlohmann::json;

const json& Golden() {
  static const json golden = json::parse(testing::ReadTestData("golden/oscar_golden.json"));
  return golden;
}

// The generator's rows: x = 2u - 1 with 24 bits, value bf16(3 x^3 + 0.25 x).
std::vector<float> DrawRows(SplitMix64* mix, size_t count) {
  std::vector<float> rows(count);
  for (float& value : rows) {
    const double x = static_cast<double>(mix->Next() >> 40) / 8388608.0 - 1.0;
    value = RoundToBf16(static_cast<float>(3.0 * x * x * x + 0.25 * x));
  }
  return rows;
}

template <typename T>
std::string HexOf(const std::vector<T>& values) {
  return Hex({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)});
}

template <typename T>
std::string ShaOf(const std::vector<T>& values) {
  return Hex(
      Sha256Of({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)}));
}

struct QuantisedRow {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<float> zeros;

  std::vector<uint8_t> Packed(Packing packing) const {
    const PackForm form{static_cast<uint32_t>(codes.size()), 2, packing};
    std::vector<uint8_t> bytes(PackedRowBytes(form));
    PackRow(form, codes, absl::MakeSpan(bytes));
    return bytes;
  }
  std::vector<float> Dequantised() const {
    std::vector<float> out(codes.size());
    const size_t group = codes.size() / scales.size();
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = Dequantise(codes[i], {scales[i / group], zeros[i / group]});
    }
    return out;
  }
};

QuantisedRow Quantise(std::vector<float> row, size_t group, const ClipRule& clip) {
  std::vector<float> work(row.size());
  ClipRow(clip, absl::MakeSpan(row), absl::MakeSpan(work));
  QuantisedRow out;
  out.codes.resize(row.size());
  for (size_t g = 0; g < row.size(); g += group) {
    const Affine affine = QuantiseGroup(absl::MakeConstSpan(row).subspan(g, group), 2,
                                        absl::MakeSpan(out.codes).subspan(g, group));
    out.scales.push_back(affine.scale);
    out.zeros.push_back(affine.zero);
  }
  return out;
}

TEST(OscarGoldenTest, G4HandRow) {
  const json& g4 = Golden()["G4_hand"];
  const std::vector<float> x = g4["x"];
  const ClipRule clip{ClipMethod::kSort, g4["ratio"].get<float>()};
  std::vector<float> work(x.size());
  EXPECT_EQ(ClipThreshold(clip, x, absl::MakeSpan(work)), g4["thr"].get<float>());
  const QuantisedRow row = Quantise(x, 8, clip);
  EXPECT_EQ(row.codes, g4["codes"].get<std::vector<uint8_t>>());
  EXPECT_EQ(row.scales[0], g4["scale"].get<float>());
  EXPECT_EQ(row.zeros[0], g4["zero"].get<float>());
  EXPECT_EQ(HexOf(row.Packed(Packing::kPlanar)), g4["planar"].get<std::string>());
  EXPECT_EQ(HexOf(row.Packed(Packing::kInterleaved)), g4["interleaved"].get<std::string>());
  EXPECT_EQ(row.Dequantised(), g4["deq"].get<std::vector<float>>());
}

TEST(OscarGoldenTest, G5RowOf128) {
  const json& g5 = Golden()["G5_row128"];
  SplitMix64 mix(g5["seed"].get<uint64_t>());
  const std::vector<float> row = DrawRows(&mix, 128);
  std::vector<uint16_t> bits;
  for (const float value : row) bits.push_back(FloatToBf16(value));
  ASSERT_EQ(HexOf(bits), g5["x_bf16_bits"].get<std::string>());

  size_t cases = 0;
  for (const json& c : g5["cases"]) {
    SCOPED_TRACE(c.dump());
    const auto ratio = c["ratio"].get<float>();
    EXPECT_EQ(ClipIndex(ratio, 128), c["idx"].get<int>());
    ClipRule clip{c["method"] == "sort" ? ClipMethod::kSort : ClipMethod::kBisect, ratio};
    if (!c["thr_f32"].is_null()) {
      std::vector<float> work(row.size());
      const std::vector<float> threshold = {ClipThreshold(clip, row, absl::MakeSpan(work))};
      EXPECT_EQ(HexOf(threshold), c["thr_f32"].get<std::string>());
    }
    const QuantisedRow quantised = Quantise(row, c["group"].get<size_t>(), clip);
    EXPECT_EQ(HexOf(quantised.scales), c["scale_f32"].get<std::string>());
    EXPECT_EQ(HexOf(quantised.zeros), c["zero_f32"].get<std::string>());
    EXPECT_EQ(HexOf(quantised.Packed(Packing::kPlanar)), c["packed"].get<std::string>());
    ++cases;
  }
  EXPECT_EQ(cases, 16u);
}

TEST(OscarGoldenTest, G6ConstantRows) {
  for (const json& c : Golden()["G6_constant_row"]) {
    SCOPED_TRACE(c.dump());
    const QuantisedRow row = Quantise(std::vector<float>(128, c["value"].get<float>()), 128, {});
    EXPECT_EQ(row.codes, std::vector<uint8_t>(128, c["code"].get<uint8_t>()));
    EXPECT_EQ(row.scales[0], c["scale"].get<float>());
    EXPECT_EQ(row.zeros[0], c["zero"].get<float>());
    EXPECT_EQ(row.Dequantised()[0], c["deq_fp32_meta"].get<float>());
  }
}

// One page of the golden file: 8 tokens x 2 heads x 128, given as [token][head][dim].
struct G7 {
  static constexpr uint32_t kTokens = 8;
  static constexpr uint32_t kHeads = 2;
  static constexpr uint32_t kDim = 128;

  std::vector<float> rows;
  std::vector<float> rotation;  // U = I: exact
  std::shared_ptr<const RotationSet> set;
  PartShape part;

  G7() {
    SplitMix64 mix(Golden()["G7_page"]["seed"].get<uint64_t>());
    DrawRows(&mix, size_t{48} * (4 + 2 + 2) * kDim);  // the generator's queries, keys and values
    rows = DrawRows(&mix, size_t{kTokens} * kHeads * kDim);
    const std::vector<float> h = HadamardMatrix(kDim);
    const std::vector<uint32_t> permutation = BitReversalPermutation(kDim);
    rotation.resize(h.size());
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t j = 0; j < kDim; ++j) rotation[i * kDim + j] = h[i * kDim + permutation[j]];
    }
    RotationSet::Contents contents;
    contents.model = "golden";
    contents.revision = "G7";
    RotationLayer layer;
    layer.layer_id = 5;
    layer.k = {1, kDim, rotation};
    layer.v = {1, kDim, rotation};
    contents.layers = {layer};
    set = *RotationSet::Make(std::move(contents));
    testing::PartSpec spec;
    spec.layer_ids = {5};
    spec.heads = kHeads;
    spec.k_dim = spec.v_dim = kDim;
    spec.page_tokens = kTokens;
    part = testing::MakePart(spec);
  }

  CodecDescriptor Descriptor() const {
    CodecDescriptor d = CodecDescriptor::Default(CodecKind::kOscarInt2, set->hash());
    d.clip_v = d.clip_k;
    return d;
  }

  // K and V both hold the golden rows.
  std::vector<uint8_t> RawPage() const {
    std::vector<uint8_t> page;
    for (int tensor = 0; tensor < 2; ++tensor) {
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t t = 0; t < kTokens; ++t) {
          for (size_t i = 0; i < kDim; ++i) {
            const uint16_t bits = FloatToBf16(rows[(t * kHeads + h) * kDim + i]);
            page.push_back(static_cast<uint8_t>(bits));
            page.push_back(static_cast<uint8_t>(bits >> 8));
          }
        }
      }
    }
    return page;
  }

  void Check(const std::string& name, const CodecDescriptor& descriptor) const {
    SCOPED_TRACE(name);
    const json& golden = Golden()["G7_page"][name];
    auto codec = PageCodec::Create(part, descriptor, set);
    ASSERT_TRUE(codec.ok()) << codec.status();
    auto layout = PayloadLayout::Make(part, descriptor);
    ASSERT_TRUE(layout.ok());
    const auto scratch = (*codec)->MakeScratch();
    const std::vector<uint8_t> raw = RawPage();
    std::vector<uint8_t> payload((*codec)->payload_bytes());
    const EncodeReport report =
        (*codec)->Encode(raw, kTokens, Effort::kNormal, absl::MakeSpan(payload), scratch.get());
    EXPECT_EQ(report.result, BlockResult::kOk);
    EXPECT_TRUE(report.fits);

    size_t code_bytes = 0, meta_bytes = 0;
    for (const TensorLayout& tensor : layout->tensors()) {
      std::vector<uint8_t> codes, meta;  // [token][head], as the golden file hashes them
      for (size_t t = 0; t < kTokens; ++t) {
        for (size_t h = 0; h < kHeads; ++h) {
          const uint8_t* block = payload.data() + tensor.offset + h * tensor.head_bytes;
          const uint8_t* c = block + t * tensor.code_row_bytes;
          const uint8_t* m = block + tensor.meta_offset + t * tensor.meta_row_bytes;
          codes.insert(codes.end(), c, c + tensor.code_row_bytes);
          meta.insert(meta.end(), m, m + tensor.meta_row_bytes);
        }
      }
      EXPECT_EQ(ShaOf(codes), golden["codes_sha256"].get<std::string>());
      EXPECT_EQ(Hex(absl::MakeSpan(codes).first(32)), golden["codes_t0h0"].get<std::string>());
      EXPECT_EQ(ShaOf(AsFloats(meta, descriptor.meta)),
                golden["sz_fp32_sha256"].get<std::string>());
      code_bytes = codes.size();
      meta_bytes = meta.size();
    }
    EXPECT_EQ(code_bytes, golden["bytes"]["codes"].get<size_t>());
    EXPECT_EQ(meta_bytes, golden["bytes"]["sz"].get<size_t>());

    std::vector<uint8_t> back(raw.size());
    ASSERT_TRUE(
        (*codec)->Decode(payload, kTokens, Frame::kOriginal, absl::MakeSpan(back), scratch.get()));
    EXPECT_NEAR(RelativeError(raw, back), golden["rel_sq_err"].get<double>(), 1e-12);
  }

  static std::vector<float> AsFloats(const std::vector<uint8_t>& meta, MetaForm form) {
    const size_t bytes = form == MetaForm::kFp32 ? 4 : 2;
    std::vector<float> out(meta.size() / bytes);
    for (size_t i = 0; i < out.size(); ++i) {
      if (bytes == 4) {
        std::memcpy(&out[i], meta.data() + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, meta.data() + 2 * i, 2);
        out[i] = Bf16ToFloat(bits);
      }
    }
    return out;
  }

  static double RelativeError(const std::vector<uint8_t>& raw, const std::vector<uint8_t>& back) {
    double error = 0.0, energy = 0.0;
    for (size_t i = 0; i < raw.size() / 2; ++i) {
      uint16_t a, b;
      std::memcpy(&a, raw.data() + 2 * i, 2);
      std::memcpy(&b, back.data() + 2 * i, 2);
      const double x = double{Bf16ToFloat(a)};
      const double e = double{Bf16ToFloat(b)} - x;
      error += e * e;
      energy += x * x;
    }
    return error / energy;
  }
};

TEST(OscarGoldenTest, G7RotatedRows) {
  const G7 g7;
  std::vector<double> expanded(size_t{G7::kDim} * G7::kDim);
  ExpandMatrix(g7.rotation, G7::kDim, RotateDirection::kForward, absl::MakeSpan(expanded));
  std::vector<float> rotated(g7.rows.size());
  std::vector<double> work(MultiplyWork(G7::kDim));
  EXPECT_TRUE(
      MultiplyRows(g7.rows, expanded, G7::kDim, absl::MakeSpan(rotated), absl::MakeSpan(work)));
  std::vector<uint16_t> bits;
  for (const float value : rotated) bits.push_back(FloatToBf16(value));
  EXPECT_EQ(ShaOf(bits), Golden()["G7_page"]["uniform_sort"]["rotated_bf16_sha256"]);
}

TEST(OscarGoldenTest, G7Page) {
  const G7 g7;
  CodecDescriptor d = g7.Descriptor();
  g7.Check("meta_bf16", d);
  d.meta = MetaForm::kFp32;
  g7.Check("uniform_sort", d);
  d.clip_method = ClipMethod::kBisect;
  g7.Check("uniform_bsearch", d);
}

TEST(OscarGoldenTest, LloydMaxRowsDecode) {
  const json& golden = Golden()["G5_row128"]["lloyd_0.96"];
  const G7 g7;
  CodecDescriptor d = g7.Descriptor();
  d.lloyd_max = true;
  d.meta = MetaForm::kFp32;
  auto codec = PageCodec::Create(g7.part, d, g7.set);
  ASSERT_TRUE(codec.ok()) << codec.status();
  auto layout = PayloadLayout::Make(g7.part, d);
  const auto scratch = (*codec)->MakeScratch();

  // One row of K: codes, then (scale, zero).
  std::vector<uint8_t> payload((*codec)->payload_bytes(), 0);
  const TensorLayout& k = layout->tensors()[0];
  ASSERT_TRUE(ParseHex(golden["packed"].get<std::string>(),
                       absl::MakeSpan(payload).subspan(k.offset, k.code_row_bytes)));
  ASSERT_TRUE(
      ParseHex(golden["scale_f32"].get<std::string>() + golden["zero_f32"].get<std::string>(),
               absl::MakeSpan(payload).subspan(k.offset + k.meta_offset, 8)));
  std::vector<uint8_t> out(g7.part.raw_bytes);
  ASSERT_TRUE((*codec)->Decode(payload, 1, Frame::kRotated, absl::MakeSpan(out), scratch.get()));

  // Levels are mu + l sigma with the published constants.
  const auto scale = golden["scale"][0].get<double>();
  const auto zero = golden["zero"][0].get<double>();
  const std::vector<double> levels = golden["levels_minus_mu_over_sigma"];
  const double sigma = scale / (levels[2] - levels[1]);
  const double mu = (1.5 - zero) * scale;
  std::vector<uint8_t> codes(G7::kDim);
  UnpackRow({G7::kDim, 2, Packing::kPlanar},
            absl::MakeSpan(payload).subspan(k.offset, k.code_row_bytes), absl::MakeSpan(codes));
  for (size_t i = 0; i < codes.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, out.data() + 2 * i, 2);
    const double want = mu + levels[codes[i]] * sigma;
    EXPECT_NEAR(double{Bf16ToFloat(bits)}, want, std::abs(want) / 256.0) << i;
  }

  // Lloyd-Max pages are never made here.
  const EncodeReport report = (*codec)->Encode(g7.RawPage(), G7::kTokens, Effort::kNormal,
                                               absl::MakeSpan(payload), scratch.get());
  EXPECT_EQ(report.result, BlockResult::kInvalid);
}

}  // namespace
}  // namespace crumb
