// PageCodec: what is refused and how, every head dim, head groups, partial pages, raw pages, the
// ladder, and that neither scratch nor caller can change a byte.
#include "gpu/codec/page_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/gpu/codec/codec_test_util.h"

namespace crumb {
namespace {

using codec_test::Bench;
using codec_test::DefaultOf;
using codec_test::LossyKinds;
using codec_test::MakeSet;
using codec_test::RandomPage;
using codec_test::RelativeError;
using codec_test::SetSpec;
using codec_test::TestedBackend;
using ::testing::HasSubstr;
using testing::MakePart;
using testing::PartSpec;

// Relative squared error that a kind may leave on bell-shaped rows.
double ErrorBound(CodecKind kind) {
  switch (PrecisionOf(kind)) {
    case Precision::kInt4:
      return 0.02;
    default:
      return 0.35;
  }
}

TEST(PageCodecTest, RefusesWithLayerTensorAndRemedy) {
  const auto set = MakeSet({.layer_ids = {3}, .heads = 2});
  const auto check = [&](const PartSpec& spec, const CodecDescriptor& d,
                         std::shared_ptr<const RotationSet> rotations,
                         std::vector<const char*> words) {
    const auto made = PageCodec::Create(MakePart(spec), d, std::move(rotations), TestedBackend());
    ASSERT_FALSE(made.ok()) << words[0];
    EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition);
    for (const char* word : words) {
      EXPECT_THAT(std::string(made.status().message()), HasSubstr(word));
    }
  };
  const CodecDescriptor oscar = DefaultOf(CodecKind::kOscarInt2, set);
  const CodecDescriptor crumb = DefaultOf(CodecKind::kCrumbInt2, set);
  const CodecDescriptor hadamard = DefaultOf(CodecKind::kHadamardInt2, nullptr);
  PartSpec base;
  base.layer_ids = {3};
  base.heads = 2;
  for (const RawDtype dtype :
       {RawDtype::kFp16, RawDtype::kFp8E4M3, RawDtype::kFp8E5M2, RawDtype::kOpaque}) {
    PartSpec spec = base;
    spec.dtype = dtype;
    check(spec, crumb, set, {"layer 3 K", ToString(dtype), "use codec raw"});
  }
  PartSpec spec = base;
  spec.v_dim = 0;
  check(spec, crumb, set, {"layer 3 V", "MLA", "use codec raw"});
  spec = base;
  spec.k_dim = 66;
  check(spec, crumb, set, {"layer 3 K", "66", "multiple of 4"});
  for (const uint32_t dim : {80u, 96u, 112u, 192u}) {
    spec = base;
    spec.v_dim = dim;
    check(spec, hadamard, nullptr, {"layer 3 V", "no Hadamard rotation", "import a rotation set"});
    check(spec, DefaultOf(CodecKind::kCrumbInt4, nullptr), nullptr, {"layer 3 V", "Hadamard"});
  }
  spec = base;
  spec.layer_ids = {3, 4};
  check(spec, oscar, set, {"layer 4 K", "no such layer", "calibrate or import"});
  spec = base;
  spec.k_dim = 128;
  check(spec, oscar, set, {"layer 3 K", "head dim 64", "128"});
  spec = base;
  spec.head_first = 1;
  check(spec, oscar, set, {"layer 3 K", "2 kv heads", "needs 3"});
  check(base, oscar, nullptr, {"rotation set", "import it"});
  check(base, oscar, MakeSet({.layer_ids = {3}, .heads = 1}), {"needs rotation set"});
  CodecDescriptor d = oscar;
  d.group = 48;
  check(base, d, set, {"layer 3 K", "group 48", "64"});
  d = oscar;
  d.centring = Centring::kStaticMean;
  check(base, d, set, {"layer 3 K", "no mean of K"});
  PartShape part = MakePart(base);
  part.raw_bytes += 2;
  EXPECT_FALSE(PageCodec::Create(part, crumb, set).ok());
  part = MakePart(base);
  part.page_tokens = 0;
  EXPECT_FALSE(PageCodec::Create(part, crumb, set).ok());

  d = oscar;
  d.meta = MetaForm::kByte;
  EXPECT_EQ(PageCodec::Create(MakePart(base), d, set).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PageCodecTest, EveryHeadDim) {
  for (const uint32_t dim : {4u, 8u, 12u, 64u, 80u, 96u, 128u, 192u, 256u}) {
    const auto set = MakeSet({.k_dim = dim, .v_dim = dim});
    PartSpec spec;
    spec.k_dim = spec.v_dim = dim;
    const PartShape part = MakePart(spec);
    const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, dim, 0.0);
    for (const CodecKind kind : LossyKinds()) {
      const bool hadamard = kind == CodecKind::kHadamardInt2 || kind == CodecKind::kHadamardInt4;
      if (hadamard && (dim & (dim - 1)) != 0) continue;
      SCOPED_TRACE(std::string(ToString(kind)) + " " + std::to_string(dim));
      Bench bench(part, DefaultOf(kind, set), set);
      const EncodeReport report = bench.Encode(raw, spec.page_tokens);
      ASSERT_EQ(report.result, BlockResult::kOk);
      EXPECT_TRUE(report.fits);
      ASSERT_TRUE(bench.Decode(spec.page_tokens));
      const double error = RelativeError(raw, bench.back);
      EXPECT_LT(error, ErrorBound(kind));
      // What the report says in the rotated frame is what comes out, up to BF16.
      const double reported =
          (report.error_k + report.error_v) / (report.energy_k + report.energy_v);
      EXPECT_NEAR(error, reported, 0.1 * reported + 1e-4);
    }
  }
}

TEST(PageCodecTest, DifferentDimsOfKAndV) {
  const auto set = MakeSet({.k_dim = 192, .v_dim = 128});
  PartSpec spec;
  spec.k_dim = 192;
  spec.v_dim = 128;
  spec.heads = 3;
  const PartShape part = MakePart(spec);
  const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
  for (const CodecKind kind :
       {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kOscarInt2}) {
    Bench bench(part, DefaultOf(kind, set), set);
    EXPECT_EQ(bench.Encode(raw, 64).result, BlockResult::kOk);
    EXPECT_TRUE(bench.Decode(64));
    EXPECT_LT(RelativeError(raw, bench.back), 0.3);
  }
}

// A part with heads 1..2 of four has the bytes that those heads have in the whole part.
TEST(PageCodecTest, HeadGroupsUseTheirOwnHeads) {
  const auto set = MakeSet({.heads = 4, .kv_heads = 4, .k_mean = true, .query_moment = true});
  PartSpec whole;
  whole.heads = 4;
  PartSpec half = whole;
  half.heads = 2;
  half.head_first = 1;
  const PartShape whole_part = MakePart(whole);
  const PartShape half_part = MakePart(half);
  const std::vector<uint8_t> raw = RandomPage(whole_part.raw_bytes, 2);
  const size_t head_bytes = size_t{64} * 64 * 2;
  std::vector<uint8_t> cut;
  for (const size_t tensor : {0u, 1u}) {
    const auto first = raw.begin() + static_cast<ptrdiff_t>((tensor * 4 + 1) * head_bytes);
    cut.insert(cut.end(), first, first + static_cast<ptrdiff_t>(2 * head_bytes));
  }
  for (const CodecKind kind : LossyKinds()) {
    SCOPED_TRACE(ToString(kind));
    CodecDescriptor d = DefaultOf(kind, set);
    Bench all(whole_part, d, set);
    Bench some(half_part, d, set);
    all.Encode(raw, 64);
    some.Encode(cut, 64);
    const auto layout = PayloadLayout::Make(whole_part, d);
    const auto half_layout = PayloadLayout::Make(half_part, d);
    for (const size_t t : {0u, 1u}) {
      const TensorLayout& a = layout->tensors()[t];
      const TensorLayout& b = half_layout->tensors()[t];
      ASSERT_EQ(a.head_bytes, b.head_bytes);
      EXPECT_EQ(std::memcmp(all.payload.data() + a.offset + a.head_bytes,
                            some.payload.data() + b.offset, size_t{2} * a.head_bytes),
                0);
    }
  }
}

TEST(PageCodecTest, PartialPages) {
  for (const uint32_t page_tokens : {1u, 3u, 17u, 64u}) {
    const auto set = MakeSet({.kv_heads = 1, .k_mean = true});
    PartSpec spec;
    spec.page_tokens = page_tokens;
    spec.heads = 2;
    const PartShape part = MakePart(spec);
    const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 3);
    std::vector<CodecKind> kinds = LossyKinds();
    kinds.push_back(CodecKind::kRaw);
    for (const CodecKind kind : kinds) {
      for (uint32_t tokens = 1; tokens <= page_tokens; tokens += tokens < 3 ? 1 : 13) {
        SCOPED_TRACE(std::string(ToString(kind)) + " " + std::to_string(tokens) + " of " +
                     std::to_string(page_tokens));
        Bench bench(part, DefaultOf(kind, set), set);
        ASSERT_EQ(bench.Encode(raw, tokens).result, BlockResult::kOk);
        const std::vector<uint8_t> payload = bench.payload;
        // Whatever lies in the rows past the count, NaN too, changes nothing.
        std::vector<uint8_t> dirty = raw;
        const size_t row = 128, head = row * page_tokens;
        for (size_t h = 0; h < 4; ++h) {
          std::memset(dirty.data() + h * head + row * tokens, 0xff, head - row * tokens);
        }
        ASSERT_EQ(bench.Encode(dirty, tokens).result, BlockResult::kOk);
        EXPECT_EQ(bench.payload, payload);
        const auto layout = PayloadLayout::Make(part, DefaultOf(kind, set));
        for (const TensorLayout& t : layout->tensors()) {
          for (size_t h = 0; h < t.heads; ++h) {
            const uint8_t* block = payload.data() + t.offset + h * t.head_bytes;
            for (uint32_t i = tokens * t.code_row_bytes; i < page_tokens * t.code_row_bytes; ++i) {
              ASSERT_EQ(block[i], 0);
            }
            for (uint32_t i = tokens * t.meta_row_bytes; i < page_tokens * t.meta_row_bytes; ++i) {
              ASSERT_EQ(block[t.meta_offset + i], 0);
            }
          }
        }
        ASSERT_TRUE(bench.Decode(tokens));
        for (size_t h = 0; h < 4; ++h) {
          for (size_t i = h * head + row * tokens; i < (h + 1) * head; ++i) {
            ASSERT_EQ(bench.back[i], 0);
          }
        }
      }
    }
  }
}

TEST(PageCodecTest, DecodeRefusesWrongLengths) {
  const PartShape part = MakePart({});
  for (const CodecKind kind : {CodecKind::kRaw, CodecKind::kCrumbInt4, CodecKind::kInt4}) {
    Bench bench(part, DefaultOf(kind, nullptr), nullptr);
    ASSERT_EQ(bench.Encode(RandomPage(part.raw_bytes, 1), 64).result, BlockResult::kOk);
    const std::vector<uint8_t> untouched = bench.back;
    EXPECT_FALSE(bench.Decode(0));
    EXPECT_FALSE(bench.Decode(65));
    std::vector<uint8_t> payload = bench.payload;
    payload.pop_back();
    EXPECT_FALSE(bench.codec->Decode(payload, 64, Frame::kOriginal, absl::MakeSpan(bench.back),
                                     bench.scratch.get()));
    EXPECT_FALSE(bench.codec->Decode(bench.payload, 64, Frame::kOriginal,
                                     absl::MakeSpan(bench.back).subspan(2), bench.scratch.get()));
    EXPECT_EQ(bench.back, untouched);
    EXPECT_TRUE(bench.Decode(64));
  }
}

TEST(PageCodecTest, RawPassesEveryDtypeThrough) {
  for (const RawDtype dtype : {RawDtype::kBf16, RawDtype::kFp16, RawDtype::kFp8E4M3,
                               RawDtype::kFp8E5M2, RawDtype::kOpaque}) {
    PartSpec spec;
    spec.layer_ids = {0, 2};
    spec.dtype = dtype;
    spec.page_tokens = 5;
    spec.k_dim = 577;  // MLA-like and opaque: anything
    spec.v_dim = 0;
    const PartShape part = MakePart(spec);
    std::vector<uint8_t> raw(part.raw_bytes);
    Rng rng(4);
    for (uint8_t& byte : raw) byte = static_cast<uint8_t>(rng.Below(0x3c));  // finite anywhere
    Bench bench(part, DefaultOf(CodecKind::kRaw, nullptr), nullptr);
    EXPECT_EQ(bench.codec->payload_bytes(), part.raw_bytes);
    EXPECT_EQ(bench.Encode(raw, 5).result, BlockResult::kOk);
    EXPECT_EQ(bench.payload, raw);
    EXPECT_TRUE(bench.Decode(5, Frame::kRotated));
    EXPECT_EQ(bench.back, raw);
  }
}

TEST(PageCodecTest, ScratchOfAnyCodecServes) {
  const auto set = MakeSet({.layer_ids = {0}, .k_dim = 64, .v_dim = 64});
  const PartShape small = MakePart({});
  PartSpec large;
  large.k_dim = large.v_dim = 128;
  large.page_tokens = 96;
  const PartShape other = MakePart(large);
  Bench a(small, DefaultOf(CodecKind::kCrumbInt2, set), set);
  Bench b(other, DefaultOf(CodecKind::kCrumbInt4, nullptr), nullptr);
  const std::vector<uint8_t> raw = RandomPage(small.raw_bytes, 1);
  const std::vector<uint8_t> raw_other = RandomPage(other.raw_bytes, 2);
  a.Encode(raw, 64, Effort::kBest);
  const std::vector<uint8_t> want = a.payload;
  b.Encode(raw_other, 96);
  a.scratch.swap(b.scratch);
  a.Encode(raw, 64, Effort::kBest);
  EXPECT_EQ(a.payload, want);
  b.Encode(raw_other, 96);
  a.Encode(raw, 64, Effort::kBest);
  EXPECT_EQ(a.payload, want);
  const auto fresh =
      Bench(small, DefaultOf(CodecKind::kRaw, nullptr), nullptr).codec->MakeScratch();
  a.codec->Encode(raw, 64, Effort::kBest, absl::MakeSpan(a.payload), fresh.get());
  EXPECT_EQ(a.payload, want);
}

TEST(PageCodecTest, CreateAllMakesTheSameCodecs) {
  const auto set = MakeSet({.kv_heads = 1, .k_mean = true, .query_moment = true});
  std::vector<CodecDescriptor> ladder;
  CodecKind kind = CodecKind::kCrumbInt2;
  std::vector<CodecKind> kinds = {kind};
  while (kind != CodecKind::kRaw) {
    ladder.push_back(DefaultOf(kind, set));
    kind = StepUp(kind);
    kinds.push_back(kind);
  }
  ladder.push_back(DefaultOf(kind, set));
  EXPECT_THAT(kinds, ::testing::ElementsAre(CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2,
                                            CodecKind::kCrumbInt4, CodecKind::kRaw));
  const PartShape part = MakePart({});
  const auto codecs = PageCodec::CreateAll(part, ladder, set, TestedBackend());
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  ASSERT_EQ(codecs->size(), ladder.size());
  const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
  for (size_t i = 0; i < ladder.size(); ++i) {
    Bench single(part, ladder[i], set);
    single.Encode(raw, 64);
    std::vector<uint8_t> payload((*codecs)[i]->payload_bytes());
    (*codecs)[i]->Encode(raw, 64, Effort::kNormal, absl::MakeSpan(payload), single.scratch.get());
    EXPECT_EQ(payload, single.payload);
    EXPECT_EQ((*codecs)[i]->descriptor().id(), ladder[i].id());
  }
  EXPECT_EQ(StepUp(CodecKind::kOscarInt2), CodecKind::kRaw);
  EXPECT_EQ(StepUp(CodecKind::kHadamardInt4), CodecKind::kRaw);
  ladder[1].rotation_set[0] ^= 1;
  EXPECT_FALSE(PageCodec::CreateAll(part, ladder, set).ok());
}

// Frames: the rotated rows, un-rotated by hand, are the original ones up to BF16.
TEST(PageCodecTest, FramesAgree) {
  const auto set = MakeSet({});
  const PartShape part = MakePart({});
  CodecDescriptor d = DefaultOf(CodecKind::kOscarInt2, set);
  Bench bench(part, d, set);
  bench.Encode(RandomPage(part.raw_bytes, 1), 64);
  ASSERT_TRUE(bench.Decode(64, Frame::kRotated));
  const std::vector<uint8_t> rotated = bench.back;
  ASSERT_TRUE(bench.Decode(64, Frame::kOriginal));
  const RotationLayer* layer = set->FindLayer(0);
  for (size_t row = 0; row < 128; ++row) {
    const std::vector<float>& r = row < 64 ? layer->k.matrix : layer->v.matrix;
    for (size_t j = 0; j < 64; ++j) {
      double sum = 0.0, size = 0.0;
      for (size_t i = 0; i < 64; ++i) {
        const double y = double{codec_test::Element(rotated, row * 64 + i)};
        sum += y * double{RoundToBf16(r[j * 64 + i])};
        size += y * y;
      }
      EXPECT_NEAR(double{codec_test::Element(bench.back, row * 64 + j)}, sum,
                  std::sqrt(size) / 256.0);
    }
  }
}

TEST(PageCodecTest, SmallPagesAndNoCentring) {
  const auto set = MakeSet({.kv_heads = 1, .k_mean = true});
  PartSpec spec;
  spec.page_tokens = 16;
  for (const Centring centring : {Centring::kPageMean, Centring::kStaticMean, Centring::kNone}) {
    CodecDescriptor d = DefaultOf(CodecKind::kCrumbInt2, set);
    d.centring = centring;
    const PartShape part = MakePart(spec);
    const auto layout = PayloadLayout::Make(part, d);
    EXPECT_EQ(layout->tensors()[0].side_bytes, 0u);
    Bench bench(part, d, set);
    const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);
    const EncodeReport report = bench.Encode(raw, 16);
    EXPECT_EQ(report.rows_static, centring == Centring::kNone ? 0u : 16u);
    ASSERT_TRUE(bench.Decode(16));
    EXPECT_LT(RelativeError(raw, bench.back), 0.3);
    const uint8_t* meta = bench.payload.data() + layout->tensors()[0].meta_offset;
    for (size_t row = 0; row < 16; ++row) {
      EXPECT_EQ((meta[2 * row + 1] & 0x80) != 0, centring != Centring::kNone);
    }
  }
}

// A set that has calibration but no matrices: crumb and oscar rotate by Hadamard.
TEST(PageCodecTest, SetWithoutMatricesMeansHadamard) {
  RotationSet::Contents contents;
  contents.model = "test";
  contents.revision = "1";
  RotationLayer layer;
  layer.kv_heads = 1;
  layer.k_dim = 64;
  layer.k_mean.assign(64, 0.5f);
  contents.layers = {layer};
  const auto made = RotationSet::Make(std::move(contents));
  ASSERT_TRUE(made.ok()) << made.status();
  const PartShape part = MakePart({});
  const std::vector<uint8_t> raw = RandomPage(part.raw_bytes, 1);

  Bench oscar(part, DefaultOf(CodecKind::kOscarInt2, *made), *made);
  CodecDescriptor same = DefaultOf(CodecKind::kHadamardInt2, nullptr);
  same.clip_k = 0.96f;
  same.clip_v = 0.92f;
  same.clip_method = ClipMethod::kSort;
  Bench hadamard(part, same, nullptr);
  oscar.Encode(raw, 64);
  hadamard.Encode(raw, 64);
  EXPECT_EQ(oscar.payload, hadamard.payload);

  // A Hadamard codec may name a set for its mean of K alone; V does not see it.
  CodecDescriptor centred = same;
  centred.rotation_set = (*made)->hash();
  centred.centring = Centring::kStaticMean;
  Bench mean(part, centred, *made);
  mean.Encode(raw, 64);
  const auto layout = PayloadLayout::Make(part, centred);
  const TensorLayout& v = layout->tensors()[1];
  EXPECT_NE(mean.payload, hadamard.payload);
  EXPECT_EQ(
      std::memcmp(mean.payload.data() + v.offset, hadamard.payload.data() + v.offset, v.head_bytes),
      0);
  ASSERT_TRUE(mean.Decode(64));
  EXPECT_LT(RelativeError(raw, mean.back), 0.4);
}

TEST(PageCodecTest, SectionsAreWhereTheFormatSays) {
  PartSpec spec;
  spec.layer_ids = {4, 9};
  spec.heads = 2;
  spec.k_dim = 128;
  spec.v_dim = 64;
  const PartShape part = MakePart(spec);
  const auto layout = PayloadLayout::Make(part, DefaultOf(CodecKind::kCrumbK3V2, nullptr));
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout->tensors().size(), 4u);
  const TensorLayout& k = layout->tensors()[2];
  EXPECT_EQ(k.layer_id, 9u);
  EXPECT_FALSE(k.is_v);
  EXPECT_EQ(k.code_row_bytes, 48u);  // 3 bits of 128
  EXPECT_EQ(k.meta_offset, 64u * 48);
  EXPECT_EQ(k.side_offset, 64u * 48 + 128);  // S8, Z8 of 64 rows
  EXPECT_EQ(k.side_bytes, 130u);
  EXPECT_EQ(k.head_bytes, 64u * 48 + 128 + 144);
  const TensorLayout& v = layout->tensors()[3];
  EXPECT_EQ(v.head_bytes, 64u * 16 + 128);
  EXPECT_EQ(v.side_bytes, 0u);
  EXPECT_EQ(k.offset, 2 * (k.head_bytes + v.head_bytes));
  EXPECT_EQ(layout->payload_bytes(), 4 * (k.head_bytes + v.head_bytes));
  EXPECT_EQ(v.raw_offset, 2u * 64 * (128 + 64) * 2 + 2u * 64 * 128 * 2);

  CodecDescriptor oscar = DefaultOf(CodecKind::kHadamardInt2, nullptr);
  oscar.group = 32;
  oscar.meta = MetaForm::kFp32;
  const auto grouped = PayloadLayout::Make(part, oscar);
  EXPECT_EQ(grouped->tensors()[0].groups, 4u);
  EXPECT_EQ(grouped->tensors()[0].meta_row_bytes, 32u);
}

}  // namespace
}  // namespace crumb
