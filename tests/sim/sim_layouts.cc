// Layouts, values and the reference of the simulator.
#include "tests/sim/sim_layouts.h"

#include <cstring>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"

namespace crumb::sim {
namespace {

Identity BaseIdentity(const std::string& model) {
  Identity identity;
  identity.model = model;
  identity.revision = "1";
  identity.weights_dtype = "bf16";
  identity.page_tokens = kSimPageTokens;
  identity.groups.push_back({.kind = AttentionKind::kGqa,
                             .kv_heads = 2,
                             .k_dim = 64,
                             .v_dim = 64,
                             .window = 0,
                             .layer_ids = {0, 1}});
  return identity;
}

Identity OpaqueIdentity() {
  Identity identity = BaseIdentity("opaque");
  identity.dtype = RawDtype::kOpaque;
  identity.groups[0] = {.kind = AttentionKind::kMha,
                        .kv_heads = 1,
                        .k_dim = 500,
                        .v_dim = 0,
                        .window = 0,
                        .layer_ids = {3, 7}};
  identity.part_layer_counts = {1, 1};
  return identity;
}

// `kinds`: the ladder, wanted precision first.
absl::StatusOr<SimLayout> MakeOne(Identity identity, uint32_t handle,
                                  const std::vector<CodecKind>& kinds) {
  SimLayout layout;
  layout.handle = handle;
  CRUMB_ASSIGN(Layout made, Layout::Make(std::move(identity)));
  layout.binding.layout = std::make_shared<const Layout>(std::move(made));
  layout.binding.tenant = kSimTenant;
  layout.binding.effort = Effort::kDraft;
  std::vector<CodecDescriptor> descriptors;
  for (CodecKind kind : kinds) descriptors.push_back(CodecDescriptor::Default(kind, Sha256{}));
  for (const PartShape& part : layout.binding.layout->parts()) {
    CRUMB_ASSIGN(auto codecs, PageCodec::CreateAll(part, descriptors, nullptr));
    layout.binding.ladder.push_back(codecs);
    layout.binding.readers.push_back(std::move(codecs));
  }
  return layout;
}

// Bytes of one row of one tensor.
uint64_t RowBytes(const PartShape& part, uint32_t dim) {
  return uint64_t{dim} * DtypeBytes(part.dtype);
}

}  // namespace

absl::StatusOr<std::vector<SimLayout>> MakeSimLayouts() {
  std::vector<SimLayout> layouts(3);
  CRUMB_ASSIGN(layouts[0], MakeOne(BaseIdentity("exact"), 1, {CodecKind::kRaw}));
  CRUMB_ASSIGN(layouts[1], MakeOne(BaseIdentity("lossy"), 2,
                                   {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
                                    CodecKind::kCrumbInt4, CodecKind::kRaw}));
  CRUMB_ASSIGN(layouts[2], MakeOne(OpaqueIdentity(), 3, {CodecKind::kRaw}));
  return layouts;
}

std::vector<uint8_t> MakeValue(const PartShape& part, uint64_t seed) {
  std::vector<uint8_t> value(part.raw_bytes);
  Rng rng(seed);
  if (part.dtype == RawDtype::kOpaque) {
    for (uint8_t& byte : value) byte = static_cast<uint8_t>(rng.Next());
    return value;
  }
  // Finite bf16 numbers, bell-shaped, now and then with an outlier. A few pages are too wild for a
  // rotation and must go up the ladder.
  const bool wild = rng.Chance(1, 10);
  for (size_t i = 0; i + 1 < value.size(); i += 2) {
    const uint64_t bits = rng.Next();
    float number = 0;
    for (int shift = 0; shift < 64; shift += 8) {
      number += static_cast<float>(bits >> shift & 0xff) / 128.0f - 1.0f;
    }
    if (rng.Chance(1, 200)) number *= wild ? 1e37f : 50.0f;
    uint32_t word;
    std::memcpy(&word, &number, sizeof(word));
    const auto half = static_cast<uint16_t>(word >> 16);
    std::memcpy(value.data() + i, &half, sizeof(half));
  }
  return value;
}

Expected Reference(const SimLayout& layout, uint32_t part, const PutShape& shape, Bytes raw) {
  const uint32_t tokens = shape.tokens;
  const auto& ladder = layout.binding.ladder[part];
  for (const auto& codec : ladder) {
    const auto scratch = codec->MakeScratch();
    Expected expected;
    expected.precision = PrecisionOf(codec->descriptor().kind);
    const bool precise = expected.precision <= layout.binding.unknown_position_precision;
    if (!shape.position_known && !precise && codec != ladder.back()) continue;
    expected.payload.resize(codec->payload_bytes());
    const EncodeReport report = codec->Encode(raw, tokens, layout.binding.effort,
                                              absl::MakeSpan(expected.payload), scratch.get());
    CRUMB_CHECK(report.result == BlockResult::kOk);
    if (!report.fits && codec != ladder.back()) continue;
    expected.raw.resize(raw.size());
    CRUMB_CHECK(codec->Decode(expected.payload, tokens, Frame::kOriginal,
                              absl::MakeSpan(expected.raw), scratch.get()));
    if (expected.precision != Precision::kRaw) return expected;
    // Exact pages are held against the bytes themselves, not against the codec alone.
    std::vector<uint8_t> exact(raw.begin(), raw.end());
    uint8_t* at = exact.data();
    for (const LayerShape& layer : layout.part(part).layers) {
      for (uint32_t dim : {layer.k_dim, layer.v_dim}) {
        const uint64_t row = RowBytes(layout.part(part), dim);
        for (uint32_t head = 0; head < layer.heads; ++head) {
          std::memset(at + tokens * row, 0, (kSimPageTokens - tokens) * row);
          at += kSimPageTokens * row;
        }
      }
    }
    expected.raw = exact;
    return expected;
  }
  CRUMB_CHECK(false);
  return {};
}

}  // namespace crumb::sim
