// gpu/codec against the vectors of an independent OSCAR implementation: G1 permutations, G3
// composition, G4 hand row, G5 clip and group cases, G6 constant rows, G7 a whole page, and the
// decoding of Lloyd-Max rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
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

TEST(OscarGoldenTest, G1Permutations) {
  const json& g1 = Golden()["G1_perm"];
  for (const uint32_t dim : {8u, 16u, 64u, 128u, 256u}) {
    SCOPED_TRACE(dim);
    const json& golden = g1.at(std::to_string(dim));
    EXPECT_EQ(BitReversal(dim), golden["bitrev"].get<std::vector<uint32_t>>());
    EXPECT_EQ(BitReversalPermutation(dim),
              golden["perm_code_for_ascending_eigh"].get<std::vector<uint32_t>>());
  }
  EXPECT_EQ(g1.size(), 5u);
}

// Exact comparison, which tells zeros of different sign apart.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// The published R = U H P for the golden file's diagonal covariance, and what the file says of it.
struct G3 {
  static constexpr uint32_t kDim = 8;
  using Ints = std::vector<std::vector<int>>;

  const json& golden = Golden()["G3_compose"];
  std::vector<double> sigma = golden["sigma_diag"];
  std::vector<uint32_t> by_rising_eigenvalue;  // column of U -> the axis it is
  const std::vector<float> hadamard = HadamardMatrix(kDim);

  G3() {
    for (uint32_t axis = 0; axis < kDim; ++axis) by_rising_eigenvalue.push_back(axis);
    std::sort(by_rising_eigenvalue.begin(), by_rising_eigenvalue.end(),
              [&](uint32_t a, uint32_t b) { return sigma[a] < sigma[b]; });
  }

  // Columns of U H in the order of `permutation`; the columns of U are the axes in this order.
  std::vector<float> Compose(const std::vector<uint32_t>& axes,
                             const std::vector<uint32_t>& permutation) const {
    std::vector<float> r(size_t{kDim} * kDim);
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t j = 0; j < kDim; ++j) {
        r[axes[i] * kDim + j] = hadamard[i * kDim + permutation[j]];
      }
    }
    return r;
  }
  std::vector<float> Released() const {
    return Compose(by_rising_eigenvalue, BitReversalPermutation(kDim));
  }

  // The file's sqrt(8) R, times an entry's magnitude.
  static std::vector<float> Scaled(const Ints& rows, float magnitude) {
    std::vector<float> out;
    for (const auto& row : rows) {
      for (const int entry : row) out.push_back(static_cast<float>(entry) * magnitude);
    }
    return out;
  }
};

TEST(OscarGoldenTest, G3Composition) {
  const G3 g3;
  const auto magnitude = static_cast<float>(1.0 / std::sqrt(8.0));
  const std::vector<float> released = g3.Released();
  EXPECT_EQ(BitsOf(released), BitsOf(G3::Scaled(g3.golden["R_code_times_sqrt8"], magnitude)));
  std::vector<uint32_t> falling = g3.by_rising_eigenvalue;
  std::reverse(falling.begin(), falling.end());
  const std::vector<float> paper = g3.Compose(falling, BitReversal(G3::kDim));
  EXPECT_EQ(BitsOf(paper), BitsOf(G3::Scaled(g3.golden["R_paper_times_sqrt8"], magnitude)));

  const std::vector<float> signs = g3.golden["sign_of_code_col_j_vs_paper_col_7_minus_j"];
  ASSERT_EQ(signs.size(), G3::kDim);
  for (size_t j = 0; j < G3::kDim; ++j) {
    double importance = 0.0;  // of this coordinate: all carry the same
    for (size_t i = 0; i < G3::kDim; ++i) {
      const float entry = released[i * G3::kDim + j];
      EXPECT_EQ(entry, signs[j] * paper[i * G3::kDim + G3::kDim - 1 - j]) << i << ", " << j;
      importance += g3.sigma[i] * double{entry} * double{entry};
    }
    EXPECT_NEAR(importance, 36.0 / 8.0, 1e-6) << j;
  }
}

// The same matrix through a rotation set's file and through the kernel that rotates rows: the unit
// rows become the rows of R, and those of R transposed on the way back. The kernel holds R in BF16
// as the format fixes it, hence another magnitude than in the file.
TEST(OscarGoldenTest, G3RotatesRows) {
  const G3 g3;
  RotationSet::Contents contents;
  contents.model = "golden";
  contents.revision = "G3";
  RotationLayer layer;
  layer.k = {1, G3::kDim, g3.Released()};
  layer.v = layer.k;
  contents.layers = {layer};
  const auto made = RotationSet::Make(std::move(contents));
  ASSERT_TRUE(made.ok()) << made.status();
  const auto set = RotationSet::Parse(AsBytes((*made)->Serialize()));
  ASSERT_TRUE(set.ok()) << set.status();
  const std::vector<float>& r = (*set)->contents().layers[0].k.matrix;
  EXPECT_EQ(BitsOf(r), BitsOf(g3.Released()));

  const G3::Ints rows = g3.golden["R_code_times_sqrt8"];
  G3::Ints columns(G3::kDim, std::vector<int>(G3::kDim));
  std::vector<float> unit(r.size());
  for (size_t i = 0; i < G3::kDim; ++i) {
    unit[i * G3::kDim + i] = 1.0f;
    for (size_t j = 0; j < G3::kDim; ++j) columns[j][i] = rows[i][j];
  }
  const auto rotated = [&](RotateDirection direction) {
    std::vector<double> expanded(r.size()), work(MultiplyWork(G3::kDim));
    ExpandMatrix(r, G3::kDim, direction, absl::MakeSpan(expanded));
    std::vector<float> out(r.size());
    EXPECT_TRUE(MultiplyRows(unit, expanded, G3::kDim, absl::MakeSpan(out), absl::MakeSpan(work)));
    return BitsOf(out);
  };
  const float magnitude = Bf16ToFloat(0x3eb5);  // 1 / sqrt(8), rounded
  EXPECT_EQ(rotated(RotateDirection::kForward), BitsOf(G3::Scaled(rows, magnitude)));
  EXPECT_EQ(rotated(RotateDirection::kInverse), BitsOf(G3::Scaled(columns, magnitude)));
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
    auto codec = PageCodec::Create(part, descriptor, set, CodecBackend::kReference);
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
  auto codec = PageCodec::Create(g7.part, d, g7.set, CodecBackend::kReference);
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
