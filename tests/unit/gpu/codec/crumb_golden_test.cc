// Codec `crumb` against pages made by an independent implementation: the decoder exactly up to the
// rotated rows and within one BF16 ulp in the original frame; the encoder at effort best, gamma 1,
// in at least 99.5 % of codes and within 0.5 % of the summed error.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/codec_plan.h"
#include "gpu/codec/crumb_quantiser.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"
#include "gpu/codec/rotate.h"
#include "gpu/codec/row_frame.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using testing::CodecSample;

constexpr uint32_t kTokens = 64;
constexpr uint32_t kDim = testing::kSampleDim;

// Everything the golden file has of one page of one layer: K at `bits`, V at 2 bits.
struct GoldenPage {
  uint32_t layer = 0;
  uint32_t first_token = 0;
  uint32_t heads = 0;  // head 0 alone, or all
  uint32_t bits_k = 2;

  std::string Key(uint32_t head, bool is_v, const char* field) const {
    return absl::StrCat("l", layer, "_h", head, "_", is_v ? "V2" : absl::StrCat("K", bits_k), "_t",
                        first_token, "_", field);
  }
};

struct GoldenData {
  testing::NpzFile golden = testing::NpzFile::OpenTestData("golden/golden_crumb.npz");
  CodecSample sample;
  std::shared_ptr<const RotationSet> set =
      sample.Rotations({.grouping = CodecSample::Grouping::kPerLayer,
                        .k_mean = true,
                        .query_moment = true,
                        .gamma = 1.0f});

  std::vector<GoldenPage> Pages() const {
    std::vector<GoldenPage> pages;
    for (const uint32_t layer : testing::kSampleLayers) {
      for (const uint32_t first : {64u, 128u}) {
        pages.push_back({layer, first, testing::kSampleHeads, 2});
        pages.push_back({layer, first, 1, 3});
      }
    }
    return pages;
  }
  PartShape Part(const GoldenPage& page) const {
    testing::PartSpec spec;
    spec.layer_ids = {page.layer};
    spec.heads = page.heads;
    return testing::MakePart(spec);
  }
  CodecDescriptor Descriptor(const GoldenPage& page) const {
    return CodecDescriptor::Default(
        page.bits_k == 2 ? CodecKind::kCrumbInt2 : CodecKind::kCrumbK3V2, set->hash());
  }
  // The raw page out of the golden inputs.
  std::vector<uint8_t> Raw(const GoldenPage& page) const {
    std::vector<uint8_t> raw;
    for (const bool is_v : {false, true}) {
      for (uint32_t head = 0; head < page.heads; ++head) {
        const Bytes rows = golden[page.Key(head, is_v, "in")].bytes();
        raw.insert(raw.end(), rows.begin(), rows.end());
      }
    }
    return raw;
  }
  // The payload that the golden file describes.
  std::vector<uint8_t> Payload(const GoldenPage& page, const PayloadLayout& layout) const {
    std::vector<uint8_t> payload(layout.payload_bytes(), 0);
    for (const TensorLayout& tensor : layout.tensors()) {
      for (uint32_t head = 0; head < page.heads; ++head) {
        uint8_t* block = payload.data() + tensor.offset + size_t{head} * tensor.head_bytes;
        const Bytes codes = golden[page.Key(head, tensor.is_v, "codes")].bytes();
        std::memcpy(block, codes.data(), codes.size());
        const auto s8 = golden[page.Key(head, tensor.is_v, "s8")].values<uint8_t>();
        const auto z8 = golden[page.Key(head, tensor.is_v, "z8")].values<uint8_t>();
        for (size_t row = 0; row < kTokens; ++row) {
          block[tensor.meta_offset + 2 * row] = s8[row];
          block[tensor.meta_offset + 2 * row + 1] = z8[row];
        }
        if (tensor.is_v) continue;
        const Bytes mean8 = golden[page.Key(head, false, "mean8")].bytes();
        const Bytes sigma = golden[page.Key(head, false, "mean_scale")].bytes();
        std::memcpy(block + tensor.side_offset, mean8.data(), mean8.size());
        std::memcpy(block + tensor.side_offset + mean8.size(), sigma.data(), sigma.size());
      }
    }
    return payload;
  }
};

// Distance of two finite BF16 values in units of the last place.
int UlpDistance(uint16_t a, uint16_t b) {
  const auto ordered = [](uint16_t bits) {
    return (bits & 0x8000) != 0 ? -static_cast<int>(bits & 0x7fff) : static_cast<int>(bits);
  };
  return std::abs(ordered(a) - ordered(b));
}

// Largest magnitude of the row that starts at `first`.
double Largest(absl::Span<const uint16_t> page, size_t first) {
  double largest = 0.0;
  for (const uint16_t bits : page.subspan(first, kDim)) {
    largest = std::max(largest, std::abs(double{Bf16ToFloat(bits)}));
  }
  return largest;
}

absl::Span<const uint16_t> AsWords(const std::vector<uint8_t>& page, size_t offset, size_t bytes) {
  return {reinterpret_cast<const uint16_t*>(page.data() + offset), bytes / 2};
}

class CrumbGoldenTest : public ::testing::TestWithParam<CodecBackend> {};

TEST_P(CrumbGoldenTest, DecoderIsExact) {
  const GoldenData data;
  size_t rotated_equal = 0, original_equal = 0, original_near = 0, total = 0;
  for (const GoldenPage& page : data.Pages()) {
    const PartShape part = data.Part(page);
    auto codec = PageCodec::Create(part, data.Descriptor(page), data.set, GetParam());
    ASSERT_TRUE(codec.ok()) << codec.status();
    auto layout = PayloadLayout::Make(part, data.Descriptor(page));
    const auto scratch = (*codec)->MakeScratch();
    const std::vector<uint8_t> payload = data.Payload(page, *layout);
    std::vector<uint8_t> rotated(part.raw_bytes), original(part.raw_bytes);
    ASSERT_TRUE((*codec)->Decode(payload, kTokens, Frame::kRotated, absl::MakeSpan(rotated),
                                 scratch.get()));
    ASSERT_TRUE((*codec)->Decode(payload, kTokens, Frame::kOriginal, absl::MakeSpan(original),
                                 scratch.get()));
    for (const TensorLayout& tensor : layout->tensors()) {
      for (uint32_t head = 0; head < page.heads; ++head) {
        const size_t offset = tensor.raw_offset + head * tensor.raw_head_bytes;
        const auto y = AsWords(rotated, offset, tensor.raw_head_bytes);
        const auto x = AsWords(original, offset, tensor.raw_head_bytes);
        const auto want_y = data.golden[page.Key(head, tensor.is_v, "deq")].values<uint16_t>();
        const auto want_x = data.golden[page.Key(head, tensor.is_v, "out")].values<uint16_t>();
        for (size_t i = 0; i < y.size(); ++i) {
          // -0 and 0 are one value.
          rotated_equal += UlpDistance(y[i], want_y[i]) == 0 ? 1 : 0;
          const int distance = UlpDistance(x[i], want_x[i]);
          original_equal += distance == 0 ? 1 : 0;
          const double tolerance = Largest(want_x, i / kDim * kDim) * 0x1p-16;
          const double error = double{Bf16ToFloat(x[i])} - double{Bf16ToFloat(want_x[i])};
          original_near += distance <= 1 || std::abs(error) <= tolerance ? 1 : 0;
          ++total;
        }
      }
    }
  }
  std::printf("crumb golden, %s: %zu elements, rotated equal %zu, original equal %zu, near %zu\n",
              ToString(GetParam()), total, rotated_equal, original_equal, original_near);
  EXPECT_GT(total, 0u);
  EXPECT_EQ(rotated_equal, total);
  EXPECT_EQ(original_near, total);
  EXPECT_GE(original_equal, total - total / 200);
}

// Errors of a payload's rows against what they stand for, in the golden metric (K) or plain (V).
class ErrorMeter {
 public:
  explicit ErrorMeter(const GoldenData& data) : data_(data) {}

  // Summed error of one head. The base of a row of K is the one its flag names.
  double Sum(const GoldenPage& page, const TensorLayout& tensor, uint32_t head,
             const std::vector<uint8_t>& payload) const {
    const uint8_t* block = payload.data() + tensor.offset + size_t{head} * tensor.head_bytes;
    const auto in = data_.golden[page.Key(head, tensor.is_v, "in")].values<uint16_t>();
    const RotationLayer* layer = data_.set->FindLayer(page.layer);
    std::vector<double> matrix(size_t{kDim} * kDim);
    ExpandMatrix(tensor.is_v ? layer->v.matrix : layer->k.matrix, kDim, RotateDirection::kForward,
                 absl::MakeSpan(matrix));
    const CrumbGrid grid = CrumbGridOf(tensor.pack.bits);
    double sum = 0.0;
    for (size_t row = 0; row < kTokens; ++row) {
      const uint8_t s8 = block[tensor.meta_offset + 2 * row];
      const uint8_t z8 = block[tensor.meta_offset + 2 * row + 1];
      std::vector<float> x(kDim), y(kDim), base(kDim, 0.0f), work_levels(16);
      for (size_t i = 0; i < kDim; ++i) {
        x[i] = Bf16ToFloat(in[row * kDim + i]);
        if (!tensor.is_v) base[i] = Base(page, head, block + tensor.side_offset, z8, i);
      }
      std::vector<double> work(MultiplyWork(kDim));
      ToRotated({kDim, matrix, base}, x, absl::MakeSpan(y), absl::MakeSpan(work));
      std::vector<uint8_t> codes(kDim);
      UnpackRow(tensor.pack, {block + row * tensor.code_row_bytes, tensor.code_row_bytes},
                absl::MakeSpan(codes));
      CrumbLevels(grid, s8, z8, absl::MakeSpan(work_levels));
      std::vector<double> error(kDim);
      for (size_t i = 0; i < kDim; ++i) error[i] = double{y[i]} - double{work_levels[codes[i]]};
      sum += tensor.is_v ? Plain(error) : Metric(page, head, error);
    }
    return sum;
  }

 private:
  float Base(const GoldenPage& page, uint32_t head, const uint8_t* side, uint8_t z8,
             size_t i) const {
    const auto mean =
        data_.golden[absl::StrCat("l", page.layer, "_h", head, "_static_mean")].values<float>();
    if ((z8 & kCrumbStaticFlag) != 0) return mean[i];
    uint16_t sigma;
    std::memcpy(&sigma, side + kDim, 2);
    return mean[i] + PageMeanElement(static_cast<int8_t>(side[i]), sigma);
  }
  static double Plain(const std::vector<double>& error) {
    double sum = 0.0;
    for (const double e : error) sum += e * e;
    return sum;
  }
  double Metric(const GoldenPage& page, uint32_t head, const std::vector<double>& error) const {
    const auto a =
        data_.golden[absl::StrCat("l", page.layer, "_h", head, "_metric")].values<double>();
    double sum = 0.0;
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t j = 0; j < kDim; ++j) sum += error[i] * a[i * kDim + j] * error[j];
    }
    return sum;
  }

  const GoldenData& data_;
};

struct Agreement {
  size_t codes = 0;
  size_t codes_equal = 0;
  size_t meta_equal = 0;
  size_t rows = 0;
  double error = 0.0;
  double golden_error = 0.0;
};

TEST_P(CrumbGoldenTest, EncoderAgrees) {
  const GoldenData data;
  const ErrorMeter meter(data);
  std::map<std::string, Agreement> table;
  for (const GoldenPage& page : data.Pages()) {
    const PartShape part = data.Part(page);
    auto codec = PageCodec::Create(part, data.Descriptor(page), data.set, GetParam());
    ASSERT_TRUE(codec.ok()) << codec.status();
    auto layout = PayloadLayout::Make(part, data.Descriptor(page));
    const auto scratch = (*codec)->MakeScratch();
    const std::vector<uint8_t> want = data.Payload(page, *layout);
    std::vector<uint8_t> got(want.size());
    const EncodeReport report = (*codec)->Encode(data.Raw(page), kTokens, Effort::kBest,
                                                 absl::MakeSpan(got), scratch.get());
    ASSERT_EQ(report.result, BlockResult::kOk);
    EXPECT_TRUE(report.fits);
    double metric_error = 0.0, error_v = 0.0;
    for (const TensorLayout& tensor : layout->tensors()) {
      Agreement& a = table[tensor.is_v ? "V2" : absl::StrCat("K", page.bits_k)];
      for (uint32_t head = 0; head < page.heads; ++head) {
        const size_t at = tensor.offset + size_t{head} * tensor.head_bytes;
        std::vector<uint8_t> mine(kDim), golden(kDim);
        for (size_t row = 0; row < kTokens; ++row) {
          const size_t code_at = at + row * tensor.code_row_bytes;
          UnpackRow(tensor.pack, {got.data() + code_at, tensor.code_row_bytes},
                    absl::MakeSpan(mine));
          UnpackRow(tensor.pack, {want.data() + code_at, tensor.code_row_bytes},
                    absl::MakeSpan(golden));
          for (size_t i = 0; i < kDim; ++i) a.codes_equal += mine[i] == golden[i] ? 1 : 0;
          a.codes += kDim;
          const size_t meta_at = at + tensor.meta_offset + 2 * row;
          a.meta_equal += std::memcmp(got.data() + meta_at, want.data() + meta_at, 2) == 0 ? 1 : 0;
          ++a.rows;
        }
        const double error = meter.Sum(page, tensor, head, got);
        a.error += error;
        a.golden_error += meter.Sum(page, tensor, head, want);
        (tensor.is_v ? error_v : metric_error) += error;
        // The page mean has one right answer.
        EXPECT_EQ(std::memcmp(got.data() + at + tensor.side_offset,
                              want.data() + at + tensor.side_offset, tensor.side_bytes),
                  0);
      }
    }
    // The report's sums are those of the bytes; its metric comes from FP32 moments. Vector
    // backends leave the rounding of the levels to BF16 out of them.
    const bool exact = GetParam() == CodecBackend::kReference;
    EXPECT_NEAR(report.metric_error_k / metric_error, 1.0, exact ? 1e-4 : 5e-3);
    EXPECT_NEAR(report.error_v / error_v, 1.0, exact ? 1e-9 : 5e-3);
  }
  for (const auto& [name, a] : table) {
    const double equal = static_cast<double>(a.codes_equal) / static_cast<double>(a.codes);
    std::printf(
        "crumb golden, %s, %s: codes equal %.4f %%, metadata rows equal %zu of %zu, error %+.3f "
        "%%\n",
        ToString(GetParam()), name.c_str(), 100.0 * equal, a.meta_equal, a.rows,
        100.0 * (a.error / a.golden_error - 1.0));
    EXPECT_GE(equal, 0.995) << name;
    EXPECT_NEAR(a.error / a.golden_error, 1.0, 0.005) << name;
  }
  EXPECT_EQ(table.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Backends, CrumbGoldenTest, ::testing::ValuesIn(SupportedCodecBackends()),
                         [](const auto& tested) { return std::string(ToString(tested.param)); });

}  // namespace
}  // namespace crumb
