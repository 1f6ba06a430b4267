// Bytes of a raw slot against those of a packed one, header and padding counted, from real encodes:
// 64 tokens x 32 layers x 8 heads x d = 128.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cachesvc/base/page_header.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/page_codec.h"
#include "tests/support/codec_sample.h"

namespace crumb {
namespace {

constexpr double kBar = 7.0;
constexpr uint32_t kLayers = 32;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;

// BF16 values spread like sums of four uniform ones: close enough to what a rotation leaves.
std::vector<uint8_t> RandomPage(uint64_t bytes) {
  Rng rng(20240607);
  std::vector<uint8_t> page(bytes);
  for (size_t i = 0; i < page.size(); i += 2) {
    double sum = 0.0;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(rng.Below(1u << 20)) / (1u << 20) - 0.5;
    const uint16_t bits = FloatToBf16(static_cast<float>(sum * 3.0));
    std::memcpy(page.data() + i, &bits, 2);
  }
  return page;
}

// Orthogonal rotations of every layer, each another row of signs in front of a Hadamard matrix.
std::shared_ptr<const RotationSet> RandomSet() {
  Rng rng(7);
  RotationSet::Contents contents;
  contents.model = "random";
  contents.revision = "1";
  for (uint32_t id = 0; id < kLayers; ++id) {
    std::vector<float> matrix = HadamardMatrix(kDim);
    for (uint32_t i = 0; i < kDim; ++i) {
      if (!rng.Chance(1, 2)) continue;
      for (uint32_t j = 0; j < kDim; ++j) matrix[i * kDim + j] = -matrix[i * kDim + j];
    }
    RotationLayer layer;
    layer.layer_id = id;
    layer.k = {1, kDim, matrix};
    layer.v = {1, kDim, matrix};
    contents.layers.push_back(layer);
  }
  auto set = RotationSet::Make(std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

int Run() {
  testing::PartSpec spec;
  spec.layer_ids.clear();
  for (uint32_t id = 0; id < kLayers; ++id) spec.layer_ids.push_back(id);
  spec.heads = kHeads;
  spec.k_dim = spec.v_dim = kDim;
  const PartShape part = testing::MakePart(spec);
  const auto set = RandomSet();
  const std::vector<uint8_t> raw = RandomPage(part.raw_bytes);
  const auto raw_codec =
      PageCodec::Create(part, CodecDescriptor::Default(CodecKind::kRaw, {}), nullptr);
  CRUMB_CHECK(raw_codec.ok());
  const uint64_t raw_slot = PageSlotBytes((*raw_codec)->payload_bytes());

  double least = INFINITY;
  for (const CodecKind kind : {CodecKind::kCrumbInt2, CodecKind::kOscarInt2}) {
    const auto codec = PageCodec::Create(part, CodecDescriptor::Default(kind, set->hash()), set);
    CRUMB_CHECK(codec.ok());
    const auto scratch = (*codec)->MakeScratch();
    std::vector<uint8_t> payload((*codec)->payload_bytes()), back(raw.size());
    const EncodeReport report = (*codec)->Encode(raw, spec.page_tokens, Effort::kNormal,
                                                 absl::MakeSpan(payload), scratch.get());
    CRUMB_CHECK(report.result == BlockResult::kOk && report.fits);
    CRUMB_CHECK((*codec)->Decode(payload, spec.page_tokens, Frame::kOriginal, absl::MakeSpan(back),
                                 scratch.get()));
    PageHeader header;
    header.token_count = static_cast<uint16_t>(spec.page_tokens);
    header.payload_bytes = (*codec)->payload_bytes();
    std::vector<uint8_t> slot(PageSlotBytes(payload.size()), 0);
    std::memcpy(slot.data() + kPageHeaderBytes, payload.data(), payload.size());
    SealHeader(header, payload);
    StoreHeader(header, absl::MakeSpan(slot));
    CRUMB_CHECK(CheckPage(slot) == PageCheck::kOk);
    const double ratio = static_cast<double>(raw_slot) / static_cast<double>(slot.size());
    std::printf(
        "%s: raw slot %llu, packed slot %zu (payload %zu), ratio %.3f, K error %.4f, V %.4f\n",
        ToString(kind), static_cast<unsigned long long>(raw_slot), slot.size(), payload.size(),
        ratio, report.error_k / report.energy_k, report.error_v / report.energy_v);
    least = std::min(least, ratio);
  }
  std::printf("INT2 pages are at least %.3f x smaller than raw (bar %.1f)\n", least, kBar);
  return least >= kBar ? 0 : 1;
}

}  // namespace
}  // namespace crumb

int main() { return crumb::Run(); }
