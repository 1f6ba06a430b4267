// Summed error of K in the query metric on the SmolLM2 sample: crumb-int2 against published OSCAR,
// at their bytes. All three layers and heads, pages of 64 tokens from token 64 on. The metric is
// the second moment of the sample's own queries, on rows decoded to the original frame.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/codec/bf16.h"
#include "gpu/codec/page_codec.h"
#include "gpu/codec/payload_layout.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

using testing::CodecSample;

constexpr double kBar = 0.08;
constexpr uint32_t kTokens = 64;
constexpr size_t kDim = testing::kSampleDim;

struct Total {
  double error_k = 0.0;  // in the query metric
  size_t bytes_k = 0;
  size_t payload_bytes = 0;
  uint32_t rows_static = 0;
  uint32_t rows_clamped = 0;
  bool fits = true;
};

// e^T M e.
double MetricError(const float* moment, const std::vector<double>& e) {
  double sum = 0.0;
  for (size_t i = 0; i < kDim; ++i) {
    double row = 0.0;
    for (size_t j = 0; j < kDim; ++j) row += double{moment[i * kDim + j]} * e[j];
    sum += e[i] * row;
  }
  return sum;
}

double PageError(const RotationSet& metric, uint32_t layer, const std::vector<uint8_t>& raw,
                 const std::vector<uint8_t>& back) {
  const RotationLayer* calibration = metric.FindLayer(layer);
  double sum = 0.0;
  for (size_t row = 0; row < size_t{testing::kSampleHeads} * kTokens; ++row) {
    std::vector<double> e(kDim);
    for (size_t i = 0; i < kDim; ++i) {
      uint16_t a, b;
      std::memcpy(&a, raw.data() + 2 * (row * kDim + i), 2);
      std::memcpy(&b, back.data() + 2 * (row * kDim + i), 2);
      e[i] = double{Bf16ToFloat(a)} - double{Bf16ToFloat(b)};
    }
    sum += MetricError(calibration->query_moment.data() + row / kTokens * kDim * kDim, e);
  }
  return sum;
}

struct Codec {
  CodecDescriptor descriptor;
  std::shared_ptr<const RotationSet> set;
  Effort effort = Effort::kNormal;
};

Total Measure(const CodecSample& sample, const RotationSet& metric, const Codec& codec) {
  Total total;
  for (const uint32_t layer : testing::kSampleLayers) {
    testing::PartSpec spec;
    spec.layer_ids = {layer};
    spec.heads = testing::kSampleHeads;
    const PartShape part = testing::MakePart(spec);
    auto made = PageCodec::Create(part, codec.descriptor, codec.set);
    auto layout = PayloadLayout::Make(part, codec.descriptor);
    CRUMB_CHECK(made.ok() && layout.ok());
    const auto scratch = (*made)->MakeScratch();
    for (uint32_t first = kTokens; first + kTokens <= testing::kSampleTokens; first += kTokens) {
      const std::vector<uint8_t> raw = sample.RawPage({layer}, first, kTokens);
      std::vector<uint8_t> payload((*made)->payload_bytes()), back(raw.size());
      const EncodeReport report =
          (*made)->Encode(raw, kTokens, codec.effort, absl::MakeSpan(payload), scratch.get());
      CRUMB_CHECK(report.result == BlockResult::kOk);
      CRUMB_CHECK(
          (*made)->Decode(payload, kTokens, Frame::kOriginal, absl::MakeSpan(back), scratch.get()));
      total.error_k += PageError(metric, layer, raw, back);
      total.payload_bytes += payload.size();
      total.bytes_k += size_t{layout->tensors()[0].head_bytes} * testing::kSampleHeads;
      total.rows_static += report.rows_static;
      total.rows_clamped += report.rows_clamped;
      total.fits &= report.fits;
    }
  }
  return total;
}

int Run() {
  const CodecSample sample;
  const auto load = [](const char* name) {
    auto set = RotationSet::Load(testing::TestDataPath(name));
    CRUMB_CHECK(set.ok());
    return *set;
  };
  const auto set = load("smollm2/smollm2_sample.rot");
  const auto other = load("smollm2/smollm2_full.rot");
  const auto crumb = [](const std::shared_ptr<const RotationSet>& s) {
    return CodecDescriptor::Default(CodecKind::kCrumbInt2, s->hash());
  };
  const CodecDescriptor oscar = CodecDescriptor::Default(CodecKind::kOscarInt2, set->hash());
  CodecDescriptor centred = oscar;
  centred.centring = Centring::kStaticMean;
  centred.clip_k = 0.92f;

  const Total base = Measure(sample, *set, {oscar, set});
  const auto row = [&](const char* name, const Total& t) {
    std::printf("%-44s error %.4f x, K bytes %zu, K+V bytes %zu, static rows %u, clamped %u%s\n",
                name, t.error_k / base.error_k, t.bytes_k, t.payload_bytes, t.rows_static,
                t.rows_clamped, t.fits ? "" : ", does not fit");
  };
  row("oscar-int2 0.96/0.92, BF16 metadata", base);
  row("oscar-int2 0.92/0.92, static mean", Measure(sample, *set, {centred, set}));
  row("hadamard-int2",
      Measure(sample, *set, {CodecDescriptor::Default(CodecKind::kHadamardInt2, {}), nullptr}));
  row("naive-int2",
      Measure(sample, *set, {CodecDescriptor::Default(CodecKind::kNaiveInt2, {}), nullptr}));
  row("crumb-int2 draft", Measure(sample, *set, {crumb(set), set, Effort::kDraft}));
  row("crumb-int2 normal", Measure(sample, *set, {crumb(set), set, Effort::kNormal}));
  row("crumb-int2 normal, M of other text", Measure(sample, *set, {crumb(other), other}));
  row("crumb-int2 best, M of other text",
      Measure(sample, *set, {crumb(other), other, Effort::kBest}));
  const Total best = Measure(sample, *set, {crumb(set), set, Effort::kBest});
  row("crumb-int2 best", best);

  const double ratio = best.error_k / base.error_k;
  const bool holds =
      ratio <= kBar && best.payload_bytes <= base.payload_bytes && best.bytes_k <= base.bytes_k;
  std::printf("crumb-int2 best: K error %.4f x OSCAR (bar %.2f), %zu against %zu bytes\n", ratio,
              kBar, best.payload_bytes, base.payload_bytes);
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace crumb

int main() { return crumb::Run(); }
