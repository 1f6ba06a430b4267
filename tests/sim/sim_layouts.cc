// Layouts, values and the reference of the simulator.
#include "tests/sim/sim_layouts.h"

#include <cstring>
#include <map>
#include <utility>

#include "cachesvc/base/check.h"
#include "cachesvc/base/hash.h"
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

// Small, so that encoding does not take the simulator's time.
Identity LossyIdentity() {
  Identity identity = BaseIdentity("lossy");
  identity.groups[0].layer_ids = {5};
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

// Overwrites the rows past `tokens` of a raw page.
void FillTail(const PartShape& part, uint32_t tokens, uint8_t byte, MutableBytes raw) {
  uint8_t* at = raw.data();
  for (const LayerShape& layer : part.layers) {
    for (uint32_t dim : {layer.k_dim, layer.v_dim}) {
      const uint64_t row = uint64_t{dim} * DtypeBytes(part.dtype);
      for (uint32_t head = 0; head < layer.heads; ++head) {
        std::memset(at + tokens * row, byte, (kSimPageTokens - tokens) * row);
        at += kSimPageTokens * row;
      }
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<SimLayout>> MakeSimLayouts() {
  std::vector<SimLayout> layouts(3);
  CRUMB_ASSIGN(layouts[0], MakeOne(BaseIdentity("exact"), 1, {CodecKind::kRaw}));
  CRUMB_ASSIGN(layouts[1], MakeOne(LossyIdentity(), 2,
                                   {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
                                    CodecKind::kCrumbInt4, CodecKind::kRaw}));
  layouts[1].binding.windows = {.on = true, .sink_tokens = 16, .recent_tokens = 48};
  CRUMB_ASSIGN(layouts[2], MakeOne(OpaqueIdentity(), 3, {CodecKind::kRaw}));
  return layouts;
}

namespace {

constexpr uint64_t kBaseValues = 32;

// Finite bf16 numbers, bell-shaped, now and then with an outlier. A few pages are too wild for a
// rotation and must go up the ladder.
std::vector<uint8_t> MakeBase(uint64_t bytes, uint64_t seed) {
  std::vector<uint8_t> value(bytes);
  Rng rng(seed);
  const bool wild = rng.Chance(1, 10);
  for (size_t i = 0; i + 1 < value.size(); i += 2) {
    const uint64_t bits = rng.Next();
    float number = 0;
    for (int shift = 0; shift < 64; shift += 16) {
      number += static_cast<float>(bits >> shift & 0xffff) / 32768.0f - 1.0f;
    }
    if (rng.Chance(1, 200)) number *= wild ? 1e37f : 50.0f;
    uint32_t word;
    std::memcpy(&word, &number, sizeof(word));
    const auto half = static_cast<uint16_t>(word >> 16);
    std::memcpy(value.data() + i, &half, sizeof(half));
  }
  return value;
}

// Made once per program: immutable, the same for all seeds.
const std::vector<uint8_t>& BaseValue(uint64_t bytes, uint64_t seed) {
  static auto* const bases = new std::map<std::pair<uint64_t, uint64_t>, std::vector<uint8_t>>;
  std::vector<uint8_t>& base = (*bases)[{bytes, seed % kBaseValues}];
  if (base.empty()) base = MakeBase(bytes, seed % kBaseValues + 1);
  return base;
}

}  // namespace

std::vector<uint8_t> MakeValue(const PartShape& part, const PutShape& shape, uint64_t seed) {
  std::vector<uint8_t> value = BaseValue(part.raw_bytes, seed);
  // Every word of two pages differs; of numbers the mantissa alone, so that they stay finite.
  const uint64_t mask = part.dtype == RawDtype::kOpaque ? UINT64_MAX : 0x007f'007f'007f'007full;
  SplitMix64 mix(seed);
  uint64_t stream = mix.Next();
  for (size_t i = 0; i + 8 <= value.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, value.data() + i, sizeof(word));
    stream = stream * 6364136223846793005u + 1442695040888963407u;
    word ^= (stream ^ stream >> 29) & mask;
    std::memcpy(value.data() + i, &word, sizeof(word));
  }
  if (part.dtype == RawDtype::kOpaque) return value;
  FillTail(part, shape.tokens, 0xff, absl::MakeSpan(value));
  if (shape.non_finite)
    std::memset(value.data(), 0xff, 2);  // of the first row, which every page has
  return value;
}

Expected RawReference(const SimLayout& layout, uint32_t part, const PutShape& shape, Bytes raw) {
  std::vector<uint8_t> exact(raw.begin(), raw.end());
  FillTail(layout.part(part), shape.tokens, 0, absl::MakeSpan(exact));
  Expected expected;
  expected.raw_hash = expected.payload_hash = Xxh3(exact);
  expected.raw_bytes = expected.payload_bytes = static_cast<uint32_t>(exact.size());
  return expected;
}

Expected Reference(const SimLayout& layout, uint32_t part, const PutShape& shape, Bytes raw) {
  const auto& ladder = layout.binding.ladder[part];
  const bool exact = ladder.front()->descriptor().kind == CodecKind::kRaw;
  if (exact) return RawReference(layout, part, shape, raw);
  if (shape.non_finite) return {.refused = true};
  for (const auto& codec : ladder) {
    Expected expected;
    expected.precision = PrecisionOf(codec->descriptor().kind);
    const bool precise = expected.precision <= layout.binding.unknown_position_precision;
    if (!shape.position_known && !precise) continue;
    // Exact pages are held against the bytes themselves, not against the codec.
    if (expected.precision == Precision::kRaw) return RawReference(layout, part, shape, raw);
    const auto scratch = codec->MakeScratch();
    std::vector<uint8_t> payload(codec->payload_bytes()), decoded(raw.size());
    const EncodeReport report = codec->Encode(raw, shape.tokens, layout.binding.effort,
                                              absl::MakeSpan(payload), scratch.get());
    CRUMB_CHECK(report.result == BlockResult::kOk);
    if (!report.fits) continue;
    CRUMB_CHECK(codec->Decode(payload, shape.tokens, Frame::kOriginal, absl::MakeSpan(decoded),
                              scratch.get()));
    expected.payload_hash = Xxh3(payload);
    expected.payload_bytes = static_cast<uint32_t>(payload.size());
    expected.raw_hash = Xxh3(decoded);
    expected.raw_bytes = static_cast<uint32_t>(decoded.size());
    return expected;
  }
  CRUMB_CHECK(false);
  return {};
}

}  // namespace crumb::sim
