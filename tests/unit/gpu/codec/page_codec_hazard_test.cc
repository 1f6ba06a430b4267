// Pages that break codecs: NaN and Inf, constant rows, huge and tiny ranges, hostile payloads, and
// callers with flush-to-zero or another rounding mode set.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/unit/gpu/codec/codec_test_util.h"

namespace crumb {
namespace {

using codec_test::Bench;
using codec_test::ConstantPage;
using codec_test::DefaultOf;
using codec_test::Element;
using codec_test::LossyKinds;
using codec_test::MakeSet;
using codec_test::RandomPage;
using testing::MakePart;
using testing::PartSpec;

std::shared_ptr<const RotationSet> CalibratedSet() {
  return MakeSet(
      {.layer_ids = {0, 7}, .heads = 2, .kv_heads = 2, .k_mean = true, .query_moment = true});
}

PartShape TwoLayers() {
  PartSpec spec;
  spec.layer_ids = {0, 7};
  spec.heads = 2;
  return MakePart(spec);
}

TEST(NonFiniteTest, RefusedWithItsPlaceAndThePayloadUntouched) {
  const auto set = CalibratedSet();
  const PartShape part = TwoLayers();
  const std::vector<uint8_t> clean = RandomPage(part.raw_bytes, 1);
  // Element index: ((layer * 2 + is_v) * 2 + head) * 64 * 64 + token * 64 + dim.
  struct Place {
    uint32_t layer;
    uint32_t is_v;
    uint32_t head;
    uint32_t token;
    uint32_t dim;
  };
  const uint32_t ids[] = {0, 7};
  for (const Place& at : {Place{0, 0, 0, 0, 0}, Place{0, 1, 0, 5, 63}, Place{1, 0, 1, 63, 31},
                          Place{1, 1, 1, 63, 63}}) {
    for (const uint16_t bits : {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0},
                                uint16_t{0xffff}, uint16_t{0x7f81}}) {
      std::vector<uint8_t> raw = clean;
      const size_t index =
          (((size_t{at.layer} * 2 + at.is_v) * 2 + at.head) * 64 + at.token) * 64 + at.dim;
      codec_test::SetElement(&raw, index, bits);
      for (const CodecKind kind : LossyKinds()) {
        Bench bench(part, DefaultOf(kind, set), set);
        const std::vector<uint8_t> before = bench.payload;
        const EncodeReport report = bench.Encode(raw, 64);
        EXPECT_EQ(report.result, BlockResult::kNonFinite);
        EXPECT_EQ(report.bad_layer_id, ids[at.layer]);
        EXPECT_EQ(report.bad_is_v, at.is_v == 1);
        EXPECT_EQ(report.bad_head, at.head);
        EXPECT_EQ(report.bad_token, at.token);
        EXPECT_EQ(bench.payload, before);
      }
      Bench raw_bench(part, DefaultOf(CodecKind::kRaw, nullptr), nullptr);
      const EncodeReport report = raw_bench.Encode(raw, 64);
      EXPECT_EQ(report.result, BlockResult::kNonFinite);
      EXPECT_EQ(report.bad_layer_id, ids[at.layer]);
      EXPECT_EQ(raw_bench.payload, raw);  // kept as put; the caller decides
    }
  }
}

TEST(NonFiniteTest, RawLooksIntoFp16ButNotIntoBytes) {
  PartSpec spec;
  spec.dtype = RawDtype::kFp16;
  const PartShape part = MakePart(spec);
  std::vector<uint8_t> raw(part.raw_bytes, 0);
  raw[2 * (64 * 64 + 3 * 64) + 1] = 0x7c;  // V, token 3: infinity
  Bench bench(part, DefaultOf(CodecKind::kRaw, nullptr), nullptr);
  const EncodeReport report = bench.Encode(raw, 64);
  EXPECT_EQ(report.result, BlockResult::kNonFinite);
  EXPECT_TRUE(report.bad_is_v);
  EXPECT_EQ(report.bad_token, 3u);
  // Past the count it does not exist.
  EXPECT_EQ(bench.Encode(raw, 3).result, BlockResult::kOk);
  spec.dtype = RawDtype::kOpaque;
  const PartShape opaque = MakePart(spec);
  Bench bytes(opaque, DefaultOf(CodecKind::kRaw, nullptr), nullptr);
  EXPECT_EQ(bytes.Encode(std::vector<uint8_t>(opaque.raw_bytes, 0xff), 64).result,
            BlockResult::kOk);
}

bool AllFinite(const std::vector<uint8_t>& page) {
  for (size_t i = 0; i < page.size() / 2; ++i) {
    if (!std::isfinite(Element(page, i))) return false;
  }
  return true;
}

PartShape OneHead() { return MakePart({}); }

// Finite in, finite out; and a crumb page is close or says that it does not fit. (What an affine
// group may err is tested group by group: without a mean or a clip one outlier costs a whole row.)
void CheckFiniteAndHonest(const std::vector<uint8_t>& raw, double bound) {
  const auto set = CalibratedSet();
  const PartShape part = OneHead();
  for (const CodecKind kind : LossyKinds()) {
    for (const Effort effort : {Effort::kDraft, Effort::kBest}) {
      SCOPED_TRACE(std::string(ToString(kind)) + " " + ToString(effort));
      Bench bench(part, DefaultOf(kind, set), set);
      const EncodeReport report = bench.Encode(raw, 64, effort);
      ASSERT_EQ(report.result, BlockResult::kOk);
      for (const Frame frame : {Frame::kRotated, Frame::kOriginal}) {
        ASSERT_TRUE(bench.Decode(64, frame));
        EXPECT_TRUE(AllFinite(bench.back));
      }
      ASSERT_TRUE(std::isfinite(report.error_k) && std::isfinite(report.error_v));
      const bool crumb = bench.codec->descriptor().meta == MetaForm::kByte;
      if (crumb && report.fits) {
        EXPECT_LE(codec_test::RelativeError(raw, bench.back), bound);
      }
      if (!crumb) break;  // effort is crumb's
    }
  }
}

TEST(HazardTest, ConstantPages) {
  for (const float c : {1.0f, -1.0f, 0.5f, 65504.0f, -65504.0f, 6e-8f, 1e-30f, 3e38f, -3e38f}) {
    SCOPED_TRACE(c);
    CheckFiniteAndHonest(ConstantPage(OneHead().raw_bytes, c), 0.35);
  }
}

TEST(HazardTest, ZeroPagesStayZero) {
  const PartShape part = TwoLayers();
  for (const CodecKind kind : LossyKinds()) {
    SCOPED_TRACE(ToString(kind));
    Bench bench(part,
                DefaultOf(kind, nullptr).kind == CodecKind::kOscarInt2
                    ? DefaultOf(CodecKind::kNaiveInt2, nullptr)
                    : DefaultOf(kind, nullptr),
                nullptr);
    for (const float zero : {0.0f, -0.0f}) {
      const EncodeReport report = bench.Encode(ConstantPage(part.raw_bytes, zero), 64);
      EXPECT_TRUE(report.fits);
      EXPECT_EQ(report.rows_clamped, 0u);
      ASSERT_TRUE(bench.Decode(64));
      for (size_t i = 0; i < bench.back.size() / 2; ++i) ASSERT_EQ(Element(bench.back, i), 0.0f);
    }
  }
}

// Without a rotation a constant row comes back within the rounding of its metadata.
TEST(HazardTest, ConstantRowsWithoutRotation) {
  const PartShape part = TwoLayers();
  for (const MetaForm meta : {MetaForm::kBf16, MetaForm::kFp32}) {
    for (const CodecKind kind : {CodecKind::kNaiveInt2, CodecKind::kInt4}) {
      for (const float c : {0.0f, 1.0f, -1.0f, 65504.0f, -65504.0f, 6e-8f, 1e-30f, 3e38f, -3e38f}) {
        SCOPED_TRACE(c);
        CodecDescriptor d = DefaultOf(kind, nullptr);
        d.meta = meta;
        Bench bench(part, d, nullptr);
        const std::vector<uint8_t> raw = ConstantPage(part.raw_bytes, c);
        EXPECT_TRUE(bench.Encode(raw, 64).fits);
        ASSERT_TRUE(bench.Decode(64));
        const double x = double{Element(raw, 0)};
        // FP32 metadata: exact to one BF16 ulp; BF16 metadata rounds two factors.
        const double bound = std::abs(x) * (meta == MetaForm::kFp32 ? 1.0 / 256 : 3.0 / 256);
        for (size_t i = 0; i < bench.back.size() / 2; ++i) {
          ASSERT_NEAR(double{Element(bench.back, i)}, x, bound);
        }
      }
    }
  }
}

TEST(HazardTest, RangesOfEverySize) {
  const PartShape part = OneHead();
  const auto alternating = [&](float a, float b) {
    std::vector<uint8_t> page(part.raw_bytes);
    for (size_t i = 0; i < page.size() / 2; ++i) {
      codec_test::SetElement(&page, i, FloatToBf16(i % 3 == 0 ? a : b));
    }
    return page;
  };
  for (const float range : {0x1p-24f, 0x1p-14f, 65504.0f, 1e30f, 3.38e38f}) {
    SCOPED_TRACE(range);
    CheckFiniteAndHonest(alternating(-range, range), 0.4);
    CheckFiniteAndHonest(alternating(0.0f, range), 0.4);
  }
  CheckFiniteAndHonest(alternating(1.0f, 1.0078125f), 0.4);  // one BF16 ulp apart
  CheckFiniteAndHonest(alternating(1e-40f, 3e-40f), 0.4);    // subnormal
  std::vector<uint8_t> outlier = ConstantPage(part.raw_bytes, 1e-3f);
  for (size_t i = 17; i < outlier.size() / 2; i += 64) {
    codec_test::SetElement(&outlier, i, FloatToBf16(6e4f));
  }
  CheckFiniteAndHonest(outlier, 1.0);
}

// A row past what 8-bit metadata can say sends the page up the ladder.
TEST(HazardTest, RowsThatDoNotFitStepUp) {
  const auto set = CalibratedSet();
  const PartShape part = TwoLayers();
  for (const double size : {3e4, 1e-6}) {
    std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
    for (size_t i = 0; i < 64; ++i) {  // one row of V in the second layer
      const size_t index = (size_t{3} * 2 * 64 + 9) * 64 + i;
      codec_test::SetElement(&raw, index,
                             FloatToBf16(static_cast<float>(size * std::sin(double(i * i)))));
    }
    for (const CodecKind kind :
         {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kCrumbInt4}) {
      Bench bench(part, DefaultOf(kind, set), set);
      const EncodeReport report = bench.Encode(raw, 64);
      EXPECT_FALSE(report.fits);
      EXPECT_GE(report.rows_clamped, 1u);
      EXPECT_TRUE(bench.Decode(64));
      EXPECT_TRUE(AllFinite(bench.back));
    }
    Bench oscar(part, DefaultOf(CodecKind::kOscarInt2, set), set);
    EXPECT_TRUE(oscar.Encode(raw, 64).fits);
  }
}

// The published floor of the range erases tiny rows: said, so that the page is kept raw.
TEST(HazardTest, RowsBelowTheFloorDoNotFit) {
  const PartShape part = OneHead();
  std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
  Bench bench(part, DefaultOf(CodecKind::kHadamardInt2, nullptr), nullptr);
  EXPECT_TRUE(bench.Encode(raw, 64).fits);
  for (size_t i = 0; i < 64; ++i) {
    codec_test::SetElement(&raw, 30 * 64 + i, FloatToBf16(i % 2 == 0 ? 1e-30f : -3e-30f));
  }
  EXPECT_FALSE(bench.Encode(raw, 64).fits);
}

// A rotated value past the largest BF16 cannot be stored by any lossy codec.
TEST(HazardTest, OverflowInTheRotation) {
  const PartShape part = TwoLayers();
  const std::vector<uint8_t> raw = ConstantPage(part.raw_bytes, 3e38f);
  for (const CodecKind kind :
       {CodecKind::kHadamardInt2, CodecKind::kHadamardInt4, CodecKind::kCrumbInt4}) {
    Bench bench(part, DefaultOf(kind, nullptr), nullptr);
    EXPECT_FALSE(bench.Encode(raw, 64).fits) << ToString(kind);
    ASSERT_TRUE(bench.Decode(64));
    EXPECT_TRUE(AllFinite(bench.back));
  }
}

TEST(HazardTest, AnyPayloadDecodes) {
  const auto set = CalibratedSet();
  const PartShape part = TwoLayers();
  Rng rng(9);
  for (const CodecKind kind : LossyKinds()) {
    CodecDescriptor d = DefaultOf(kind, set);
    if (d.meta == MetaForm::kBf16) d.meta = MetaForm::kFp32;  // NaN and Inf among the metadata
    Bench bench(part, d, set);
    for (int round = 0; round < 4; ++round) {
      for (uint8_t& byte : bench.payload) {
        byte = round == 0 ? 0xff : static_cast<uint8_t>(rng.Next());
      }
      EXPECT_TRUE(bench.Decode(64, Frame::kOriginal));
      EXPECT_TRUE(bench.Decode(7, Frame::kRotated));
      if (d.meta == MetaForm::kByte && round > 0) {
        // Crumb's S8 and Z8 have no value that is not finite.
        EXPECT_TRUE(AllFinite(bench.back));
      }
    }
  }
}

TEST(HazardTest, TheCallersFloatingPointModeDoesNotMatter) {
  const auto set = CalibratedSet();
  const PartShape part = TwoLayers();
  std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
  for (size_t i = 0; i < raw.size() / 2; i += 5) {  // rows with subnormals
    codec_test::SetElement(&raw, i, static_cast<uint16_t>(i % 127));
  }
  for (size_t i = 0; i < 64 * 64; ++i) {  // and a head of nothing else
    codec_test::SetElement(&raw, i, static_cast<uint16_t>(i % 128));
  }
  for (const CodecKind kind : LossyKinds()) {
    SCOPED_TRACE(ToString(kind));
    CodecDescriptor d = DefaultOf(kind, set);
    if (d.meta == MetaForm::kBf16) d.meta = MetaForm::kFp32;
    Bench bench(part, d, set);
    bench.Encode(raw, 64);
    bench.Decode(64);
    const std::vector<uint8_t> payload = bench.payload;
    const std::vector<uint8_t> back = bench.back;

    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    bench.Encode(raw, 64);
    bench.Decode(64);
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
    EXPECT_EQ(bench.payload, payload);
    EXPECT_EQ(bench.back, back);

#if defined(__x86_64__)
    constexpr unsigned kFtzAndDaz = 0x8040;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFtzAndDaz);
    bench.Encode(raw, 64);
    bench.Decode(64);
    EXPECT_EQ(_mm_getcsr() & kFtzAndDaz, kFtzAndDaz);
    _mm_setcsr(before);
    EXPECT_EQ(bench.payload, payload);
    EXPECT_EQ(bench.back, back);
#endif
  }
}

}  // namespace
}  // namespace crumb
