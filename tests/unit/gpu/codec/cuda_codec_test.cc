// The GPU codec against the scalar one: every kind, head dim, precision, group and page size, whole
// and partial pages, aligned and unaligned memory of the worker.
#include "gpu/codec/cuda_codec.h"

#include <cstdio>
#include <string>

#include "gpu/codec/kind_traits.h"
#include "tests/unit/gpu/codec/cuda_rig.h"

namespace crumb::codec_test {
namespace {

struct Case {
  CodecKind kind;
  uint32_t dim = 128;
  uint32_t page_tokens = 64;
  uint32_t group = 0;
  MetaForm meta = MetaForm::kNone;  // kNone: the kind's own
  Packing packing = Packing::kNone;
  uint32_t shift = 0;
  bool per_head = false;
  bool mean = true;
  float clip = 0.0f;  // more than 0: clips K and V
};

std::string NameOf(const Case& c) {
  return std::string(ToString(c.kind)) + " dim " + std::to_string(c.dim) + " tokens " +
         std::to_string(c.page_tokens) + " group " + std::to_string(c.group) + " meta " +
         std::to_string(static_cast<int>(c.meta)) + " packing " +
         std::to_string(static_cast<int>(c.packing)) + " shift " + std::to_string(c.shift) +
         (c.per_head ? " per head" : "") + (c.mean ? " mean" : "");
}

constexpr uint32_t kHeads = 3;

std::unique_ptr<CudaRig> MakeRig(const Case& c, uint32_t pages = 3) {
  SetSpec spec;
  spec.layer_ids = {0, 1};
  spec.k_dim = spec.v_dim = c.dim;
  spec.heads = c.per_head ? kHeads : 1;
  spec.kv_heads = kHeads;
  spec.k_mean = c.mean;
  spec.query_moment = true;
  const auto set = MakeSet(spec);
  const CodecDescriptor descriptor = DescriptorOf(
      c.kind, set, {.group = c.group, .meta = c.meta, .packing = c.packing, .clip = c.clip});
  const PartShape part = testing::MakePart({.layer_ids = {0, 1},
                                            .heads = kHeads,
                                            .k_dim = c.dim,
                                            .v_dim = c.dim,
                                            .page_tokens = c.page_tokens});
  return std::make_unique<CudaRig>(part, descriptor, set,
                                   CudaRig::Options{.pages = pages, .shift = c.shift});
}

std::vector<uint32_t> TokensOf(const Case& c) {
  return {c.page_tokens, 1, c.page_tokens - c.page_tokens / 3};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecKind kind : LossyKinds()) {
    for (const uint32_t dim : {64u, 128u, 256u}) cases.push_back({.kind = kind, .dim = dim});
    for (const uint32_t tokens : {16u, 24u, 32u, 48u, 80u, 128u}) {
      cases.push_back({.kind = kind, .page_tokens = tokens});
    }
    cases.push_back({.kind = kind, .shift = 2});
    cases.push_back({.kind = kind, .shift = 16, .per_head = true});
    cases.push_back({.kind = kind, .mean = false});
  }
  for (const CodecKind kind : {CodecKind::kOscarInt2, CodecKind::kNaiveInt2, CodecKind::kInt4,
                               CodecKind::kHadamardInt4, CodecKind::kHadamardInt2}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      for (const uint32_t group : {32u, 64u}) {
        for (const MetaForm meta : {MetaForm::kBf16, MetaForm::kFp32}) {
          cases.push_back({.kind = kind, .dim = dim, .group = group, .meta = meta});
        }
      }
      cases.push_back({.kind = kind, .dim = dim, .meta = MetaForm::kFp32});
      cases.push_back({.kind = kind, .dim = dim, .packing = Packing::kInterleaved});
    }
  }
  return cases;
}

// Differences of two raw pages, by BF16 steps.
struct Agreement {
  uint64_t elements = 0, different = 0, wrong = 0;
  std::string last;
};

// A row agrees where elements differ by at most a BF16 step or 2^-16 of the row's maximum. With a
// mean the step is that of the sum before it, which may be as large as the row.
void Compare(const std::vector<uint8_t>& want, const std::vector<uint8_t>& got, const Case& c,
             Agreement* out) {
  const uint32_t dim = c.dim;
  const bool based = c.mean || DefaultOf(c.kind, nullptr).centring == Centring::kPageMean;
  for (size_t row = 0; row < want.size() / 2; row += dim) {
    float most = 0.0f;
    for (size_t i = row; i < row + dim; ++i) most = std::max(most, std::abs(Element(want, i)));
    for (size_t i = row; i < row + dim; ++i) {
      const float a = Element(want, i), b = Element(got, i);
      ++out->elements;
      if (a == b) continue;
      ++out->different;
      const float step =
          std::max(std::abs(a) * 0x1p-7f, based ? (most + 2.0f) * 0x1p-7f : most * 0x1p-16f);
      if (std::abs(a - b) <= step) continue;
      ++out->wrong;
      out->last = std::to_string(i) + ": " + std::to_string(a) + " and " + std::to_string(b);
    }
  }
}

TEST(CudaCodecTest, DecodesAsTheScalarCodecDoes) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    const auto rig = MakeRig(c);
    const std::vector<uint32_t> tokens = TokensOf(c);
    std::vector<std::vector<uint8_t>> payloads;
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      const auto raw = RandomPage(rig->cpu().part.raw_bytes, 7 * page + c.dim);
      ASSERT_EQ(rig->cpu().Encode(raw, tokens[page], Effort::kDraft).result, BlockResult::kOk);
      payloads.push_back(rig->cpu().payload);
      rig->SetPayload(page, payloads.back());
    }
    for (const Frame frame : {Frame::kRotated, Frame::kOriginal}) {
      rig->Poison();
      rig->Decode(tokens, frame);
      EXPECT_TRUE(rig->Untouched(tokens)) << "bytes outside the rows changed";
      Agreement agreement;
      for (uint32_t page = 0; page < rig->pages(); ++page) {
        rig->cpu().payload = payloads[page];
        ASSERT_TRUE(rig->cpu().Decode(tokens[page], frame));
        const auto got = rig->TakeRaw(page, tokens[page]);
        if (frame == Frame::kRotated) {
          EXPECT_EQ(got, rig->cpu().back) << "rotated frame, page " << page;
        }
        Compare(rig->cpu().back, got, c, &agreement);
      }
      EXPECT_EQ(agreement.wrong, 0u)
          << agreement.different << " of " << agreement.elements << " " << agreement.last;
      EXPECT_LE(agreement.different, agreement.elements / 200);
    }
  }
}

// Pages are checked before they are decoded; whatever slips through must harm nothing but its rows.
TEST(CudaCodecTest, AnyBytesDecodeAndHarmNothingElse) {
  Rng rng(19);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    const auto rig = MakeRig(c);
    const std::vector<uint32_t> tokens = TokensOf(c);
    std::vector<std::vector<uint8_t>> payloads(
        rig->pages(), std::vector<uint8_t>(rig->gpu().layout().payload_bytes()));
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      for (uint8_t& byte : payloads[page]) byte = static_cast<uint8_t>(rng.Below(256));
      rig->SetPayload(page, payloads[page]);
    }
    for (const Frame frame : {Frame::kRotated, Frame::kOriginal}) {
      rig->Poison();
      rig->Decode(tokens, frame);
      EXPECT_TRUE(rig->Untouched(tokens)) << "bytes outside the rows changed";
    }
    rig->Decode(tokens, Frame::kRotated);
    uint64_t equal = 0, different = 0;
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      rig->cpu().payload = payloads[page];
      if (!rig->cpu().Decode(tokens[page], Frame::kRotated)) continue;
      const auto got = rig->TakeRaw(page, tokens[page]);
      for (size_t i = 0; i < got.size() / 2; ++i) {
        const float want = Element(rig->cpu().back, i);
        // Scales that are no numbers make rows that are none, in either codec's way.
        if (!(std::abs(want) < 1e38f)) continue;
        ++(want == Element(got, i) ? equal : different);
      }
    }
    EXPECT_EQ(different, 0u) << equal << " levels are equal";
  }
}

std::string FirstDifference(const std::vector<uint8_t>& want, const std::vector<uint8_t>& got) {
  std::string out;
  int said = 0;
  for (size_t i = 0; i < want.size() && said < 12; ++i) {
    if (want[i] == got[i]) continue;
    ++said;
    out += " @" + std::to_string(i) + ": " + std::to_string(want[i]) + " " + std::to_string(got[i]);
  }
  return out;
}

TEST(CudaCodecTest, EncodesAsTheScalarCodecDoes) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    if (TraitsOf(c.kind).family == CodecFamily::kCrumb) continue;  // cuda_crumb_test
    const auto rig = MakeRig(c);
    ASSERT_TRUE(rig->gpu().encodes());
    const std::vector<uint32_t> tokens = TokensOf(c);
    std::vector<std::vector<uint8_t>> raws;
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      raws.push_back(RandomPage(rig->cpu().part.raw_bytes, 11 * page + c.dim));
      rig->PutRaw(page, raws.back());
    }
    rig->Encode(tokens);
    const bool unrotated = TraitsOf(c.kind).rotation == RotationUse::kNone;
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      const EncodeReport report = rig->cpu().Encode(raws[page], tokens[page]);
      const auto got = rig->Payload(page);
      const uint64_t different = DifferentBytes(rig->cpu().payload, got);
      if (unrotated) {
        EXPECT_EQ(different, 0u) << "page " << page << FirstDifference(rig->cpu().payload, got);
      } else {
        EXPECT_LE(different, got.size() / 50)
            << different << " in page " << page << " of " << got.size()
            << FirstDifference(rig->cpu().payload, got);
      }
      const CudaPageReport said = rig->Report(page);
      EXPECT_EQ(said.bad_place, ~0ull);
      EXPECT_EQ(said.unfit == 0, report.fits);
      if (said.rows[0] >= 16 && tokens[page] == c.page_tokens) {
        const double share = double{said.error[0]} / double{said.energy[0]};
        EXPECT_NEAR(share, report.error_k / report.energy_k, 0.5 * share + 1e-4);
      }
    }
  }
}

TEST(CudaCodecTest, HardRowsWithoutRotationAreEqualByteForByte) {
  for (const CodecKind kind : {CodecKind::kNaiveInt2, CodecKind::kInt4}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      for (const int way : {0, 1, 2, 3}) {
        const uint32_t group = way % 2 == 0 ? 0 : 64;
        const Case c{.kind = kind,
                     .dim = dim,
                     .group = group,
                     .mean = false,
                     .clip = way < 2     ? 0.0f
                             : dim == 64 ? 0.9f
                                         : 0.96f};
        SCOPED_TRACE(NameOf(c));
        const auto rig = MakeRig(c, 1);
        std::vector<uint8_t> raw(rig->cpu().part.raw_bytes);
        Rng rng(dim + group);
        for (size_t i = 0; i < raw.size() / 2; ++i) {
          const size_t row = i / dim;
          uint16_t bits = 0;
          switch (row % 13) {
            case 0:
              bits = 0;
              break;
            case 1:
              bits = 0x8000;
              break;
            case 2:
              bits = static_cast<uint16_t>(rng.Below(2) << 15);
              break;
            case 3:
              bits = 0x3f80;
              break;
            case 4:
              bits = FloatToBf16(1e30f);
              break;
            case 5:
              bits = FloatToBf16(rng.Below(2) == 0 ? 3e38f : -3e38f);
              break;
            case 6:
              bits = static_cast<uint16_t>(rng.Below(0x80));
              break;  // subnormal
            case 7:
              bits = FloatToBf16(static_cast<float>(1000.0 + Uniform(&rng)));
              break;
            case 8:
              bits = FloatToBf16(static_cast<float>(Uniform(&rng) * 1e-20));
              break;
            case 9:
              bits = static_cast<uint16_t>(rng.Below(0x7f80) | rng.Below(2) << 15);
              break;
            case 10:
              bits = FloatToBf16(static_cast<float>(std::max(0.0, Uniform(&rng))));
              break;
            default:
              bits = FloatToBf16(static_cast<float>(Uniform(&rng)));
              break;
          }
          SetElement(&raw, i, bits);
        }
        rig->PutRaw(0, raw);
        rig->Encode({c.page_tokens});
        const EncodeReport report = rig->cpu().Encode(raw, c.page_tokens);
        const auto got = rig->Payload(0);
        EXPECT_EQ(DifferentBytes(rig->cpu().payload, got), 0u)
            << FirstDifference(rig->cpu().payload, got);
        EXPECT_EQ(rig->Report(0).unfit == 0, report.fits) << rig->Report(0).unfit;
      }
    }
  }
}

TEST(CudaCodecTest, TheFirstNanOrInfinityIsNamed) {
  const Case c{.kind = CodecKind::kOscarInt2};
  const auto rig = MakeRig(c);
  for (const uint16_t bits : {uint16_t{0x7fc0}, uint16_t{0xff80}, uint16_t{0x7f80}}) {
    std::vector<EncodeReport> reports;
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      auto raw = RandomPage(rig->cpu().part.raw_bytes, page);
      if (page != 1) {
        SetElement(&raw, raw.size() / 4 + 1234 * page, bits);
        SetElement(&raw, raw.size() / 2 - 3, bits);
      }
      rig->PutRaw(page, raw);
      reports.push_back(rig->cpu().Encode(raw, c.page_tokens));
    }
    rig->Encode({c.page_tokens, c.page_tokens, c.page_tokens});
    for (uint32_t page = 0; page < rig->pages(); ++page) {
      const uint64_t place = rig->Report(page).bad_place;
      if (reports[page].result == BlockResult::kOk) {
        EXPECT_EQ(place, ~0ull);
        continue;
      }
      ASSERT_NE(place, ~0ull);
      const TensorLayout& tensor = rig->gpu().layout().tensors()[place >> 40];
      EXPECT_EQ(tensor.layer_id, reports[page].bad_layer_id);
      EXPECT_EQ(tensor.is_v, reports[page].bad_is_v);
      EXPECT_EQ(place >> 20 & 0xfffff, reports[page].bad_head);
      EXPECT_EQ(place & 0xfffff, reports[page].bad_token);
    }
  }
}

}  // namespace
}  // namespace crumb::codec_test
