// Pages of real, made-up and hostile rows. Tests only.
#include "tests/support/codec_cases.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "cachesvc/base/check.h"
#include "cachesvc/base/rng.h"
#include "gpu/codec/bf16.h"
#include "gpu/codec/rotation_import.h"
#include "tests/support/codec_sample.h"

namespace crumb::testing {
namespace {

// About normal, variance 1.
double Bell(Rng* rng) {
  double sum = 0.0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(rng->Below(1u << 24)) / (1u << 24);
  return sum - 6.0;
}

uint16_t Bits(double value) { return FloatToBf16(static_cast<float>(value)); }

// Second moment of queries that prefer a few directions, as real ones do.
void AddMoment(uint32_t dim, Rng* rng, std::vector<float>* moment) {
  constexpr int kQueries = 300;
  std::vector<double> scale(dim), loud(dim), sum(size_t{dim} * dim, 0.0), q(dim);
  for (uint32_t i = 0; i < dim; ++i) {
    scale[i] = std::exp(0.7 * Bell(rng));
    loud[i] = Bell(rng);
  }
  for (int t = 0; t < kQueries; ++t) {
    const double common = 1.0 + 0.5 * Bell(rng);
    for (uint32_t i = 0; i < dim; ++i) q[i] = scale[i] * (Bell(rng) + common * loud[i]);
    for (uint32_t i = 0; i < dim; ++i) {
      for (uint32_t j = 0; j < dim; ++j) sum[size_t{i} * dim + j] += q[i] * q[j] / kQueries;
    }
  }
  for (const double value : sum) moment->push_back(static_cast<float>(value));
}

// The published rotations of one layer, with M and m made up.
std::shared_ptr<const RotationSet> PublishedSet(uint32_t dim, uint32_t heads, Rng* rng) {
  const char* name = dim == 128 ? "rotations/qwen3-8b" : "rotations/qwen3.5-4b";
  const char* k_tail = dim == 128 ? "_k_rotation_qqt_r_h_pbr.pt" : "_k_rotation.pt";
  const char* v_tail = dim == 128 ? "_v_rotation_sst_r_h_pbr.pt" : "_v_rotation.pt";
  const auto k = LoadPtRotation(TestDataPath(absl::StrCat(name, k_tail)));
  const auto v = LoadPtRotation(TestDataPath(absl::StrCat(name, v_tail)));
  CRUMB_CHECK(k.ok() && v.ok());
  auto contents = CombinePtFiles(*k, *v, {.model = "made-up", .revision = "1"});
  CRUMB_CHECK(contents.ok() && contents->layers.front().k.dim == dim);
  contents->layers.resize(1);
  RotationLayer& layer = contents->layers.front();
  layer.kv_heads = heads;
  layer.k_dim = dim;
  for (uint32_t h = 0; h < heads; ++h) {
    AddMoment(dim, rng, &layer.query_moment);
    for (uint32_t i = 0; i < dim; ++i) layer.k_mean.push_back(static_cast<float>(2.0 * Bell(rng)));
  }
  auto set = RotationSet::Make(*std::move(contents));
  CRUMB_CHECK(set.ok());
  return *set;
}

PartShape PartOf(const RotationSet& set, uint32_t dim, uint32_t heads) {
  PartSpec spec;
  spec.layer_ids = {set.contents().layers.front().layer_id};
  spec.heads = heads;
  spec.k_dim = spec.v_dim = dim;
  return MakePart(spec);
}

// Rows of keys: a constant part, loud channels, tokens that go their own way; then values.
std::vector<uint8_t> MadeUpPage(const RotationLayer& layer, uint32_t dim, uint32_t heads,
                                Rng* rng) {
  std::vector<uint8_t> raw;
  std::vector<double> scale(dim);
  for (uint32_t block = 0; block < 2 * heads; ++block) {
    for (double& value : scale) value = std::exp(0.5 * Bell(rng));
    for (uint32_t token = 0; token < 64; ++token) {
      const bool plain = token % 16 == 5;  // a row that lacks the common part
      for (uint32_t i = 0; i < dim; ++i) {
        const bool is_v = block >= heads;
        const double mean = is_v ? 0.0 : double{layer.k_mean[size_t{block} * dim + i]};
        const double shift = is_v || plain ? 0.0 : 0.4 * std::sin(i + block);
        const uint16_t bits = Bits(mean + shift + scale[i] * Bell(rng));
        raw.push_back(static_cast<uint8_t>(bits & 0xff));
        raw.push_back(static_cast<uint8_t>(bits >> 8));
      }
    }
  }
  return raw;
}

enum class Row { kPlain, kConstant, kZero, kSigns, kTies, kOutlier, kZeroSigns, kNarrow };
enum class WildRow { kDenormals, kHuge, kTiny, kRange };

uint16_t Element(Row kind, uint32_t i, Rng* rng) {
  switch (kind) {
    case Row::kConstant:
      return Bits(1.25);
    case Row::kZero:
      return 0;
    case Row::kSigns:
      return Bits(rng->Chance(1, 2) ? 0.75 : -0.75);
    case Row::kTies:
      return Bits(0.5 * static_cast<double>(rng->Below(7)) - 1.5);
    case Row::kOutlier:
      return Bits(i == 17 ? 3e4 : 1e-3 * Bell(rng));
    case Row::kZeroSigns:
      return rng->Chance(1, 2) ? uint16_t{0x8000} : uint16_t{0};
    case Row::kNarrow:
      return Bits(1e-9 * Bell(rng));
    case Row::kPlain:
      break;
  }
  return Bits(Bell(rng));
}

uint16_t WildElement(WildRow kind, Rng* rng) {
  switch (kind) {
    case WildRow::kDenormals:
      return static_cast<uint16_t>(rng->Below(0x80) | rng->Below(2) << 15);
    case WildRow::kHuge:
      return Bits(1e38 * Bell(rng));
    case WildRow::kTiny:
      return Bits(1e-33 * Bell(rng));
    case WildRow::kRange:
      break;
  }
  return Bits(std::ldexp(Bell(rng), static_cast<int>(rng->Below(200)) - 100));
}

// Every kind of row in every head; a wild row in the last head, which takes it away from the
// kernels as a whole.
CodecCase HostileCase(uint32_t dim) {
  Rng rng(41 + dim);
  constexpr uint32_t kHeads = 3;
  CodecCase made;
  made.name = absl::StrCat("hostile d=", dim);
  made.set = PublishedSet(dim, kHeads, &rng);
  made.part = PartOf(*made.set, dim, kHeads);
  made.hostile = true;
  made.tokens = 61;
  made.raw.resize(made.part.raw_bytes);
  for (size_t i = 0; i < made.raw.size() / 2; ++i) {
    const auto token = static_cast<uint32_t>(i / dim % 64);
    const bool wild = i / dim / 64 % kHeads == kHeads - 1 && token % 5 == 3;
    const uint16_t bits =
        wild ? WildElement(static_cast<WildRow>(token % 4), &rng)
             : Element(static_cast<Row>(token % 8), static_cast<uint32_t>(i % dim), &rng);
    std::memcpy(made.raw.data() + 2 * i, &bits, 2);
  }
  return made;
}

}  // namespace

CodecCase MadeUpCase(uint32_t dim, uint32_t heads) {
  Rng rng(7 + dim);
  CodecCase made;
  made.name = absl::StrCat("made up d=", dim);
  made.set = PublishedSet(dim, heads, &rng);
  made.part = PartOf(*made.set, dim, heads);
  made.raw = MadeUpPage(made.set->contents().layers.front(), dim, heads, &rng);
  CRUMB_CHECK(made.raw.size() == made.part.raw_bytes);
  return made;
}

std::vector<CodecCase> CodecCases(CaseRange range) {
  const bool all = range == CaseRange::kAll;
  std::vector<CodecCase> cases;
  const CodecSample sample;
  const auto set = RotationSet::Load(TestDataPath("smollm2/smollm2_sample.rot"));
  CRUMB_CHECK(set.ok());
  PartSpec spec;
  spec.layer_ids = {0, 15, 29};
  if (!all) spec.layer_ids = {15};
  spec.heads = kSampleHeads;
  for (uint32_t first = 0; first + 64 <= kSampleTokens; first += all ? 64 : 256) {
    CodecCase& real = cases.emplace_back();
    real.name = absl::StrCat("SmolLM2 tokens ", first);
    real.part = MakePart(spec);
    real.set = *set;
    real.raw = sample.RawPage(spec.layer_ids, first, 64);
  }
  cases.push_back(MadeUpCase(128, all ? 4 : 1));
  cases.push_back(HostileCase(128));
  if (!all) return cases;
  cases.push_back(MadeUpCase(256, 4));
  cases.push_back(HostileCase(256));
  return cases;
}

}  // namespace crumb::testing
