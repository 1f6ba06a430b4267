// The contract of a vector backend with the scalar reference, on real, made-up and hostile pages:
// rotated rows near, bytes from there on equal (OSCAR and its kin), decoders exact, crumb searches
// in agreement, and one page one payload wherever it lies. Run once per backend.
#include <gtest/gtest.h>

#include <cstring>

#include "cachesvc/base/rng.h"
#include "tests/support/codec_agreement.h"
#include "tests/support/codec_cases.h"
#include "tests/unit/gpu/codec/codec_test_util.h"

namespace crumb {
namespace {

using codec_test::DefaultOf;
using codec_test::LossyKinds;
using codec_test::TestedBackend;
using testing::CodecCase;

const std::vector<CodecCase>& Cases() {
  static const std::vector<CodecCase> cases = testing::CodecCases(testing::CaseRange::kFew);
  return cases;
}

CodecDescriptor Oscar(const CodecCase& page) { return DefaultOf(CodecKind::kOscarInt2, page.set); }

// OSCAR in every form, and its kin.
std::vector<CodecDescriptor> AffineForms(const CodecCase& page) {
  std::vector<CodecDescriptor> forms;
  for (const CodecKind kind : LossyKinds()) {
    const CodecDescriptor d = DefaultOf(kind, page.set);
    if (d.meta != MetaForm::kByte) forms.push_back(d);
  }
  CodecDescriptor d = Oscar(page);
  d.meta = MetaForm::kFp32;
  forms.push_back(d);
  d.centring = Centring::kStaticMean;
  forms.push_back(d);
  for (const uint32_t group : {32u, 64u}) {
    d.group = group;
    forms.push_back(d);
  }
  d = Oscar(page);
  d.clip_method = ClipMethod::kBisect;
  forms.push_back(d);
  d.clip_k = d.clip_v = 0.0f;
  d.clip_method = ClipMethod::kNone;
  forms.push_back(d);
  return forms;
}

class VectorBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestedBackend() == CodecBackend::kReference) {
      GTEST_SKIP() << "name a vector backend with --backend";
    }
  }
};

TEST_F(VectorBackendTest, RotatedRowsAreNear) {
  testing::ValueAgreement total;
  for (const CodecCase& page : Cases()) {
    SCOPED_TRACE(page.name);
    CodecDescriptor d = Oscar(page);
    for (const Centring centring : {Centring::kNone, Centring::kStaticMean}) {
      d.centring = centring;
      const auto rows = testing::CompareRotation(page, d, TestedBackend());
      EXPECT_EQ(rows.beyond, 0u);
      EXPECT_LE(rows.different * 200, rows.values);
      total.Add(rows);
    }
  }
  EXPECT_GT(total.values, 1u << 17);
}

TEST_F(VectorBackendTest, AffineBytesAreTheScalarOnes) {
  for (const CodecCase& page : Cases()) {
    for (const CodecDescriptor& d : AffineForms(page)) {
      SCOPED_TRACE(page.name + " " + ToString(d.kind));
      ASSERT_TRUE(d.Check().ok()) << d.Check();
      EXPECT_EQ(testing::CountWrongBytes(page, d, TestedBackend()), 0u);
    }
  }
}

// Every rank that a clip may have: found in sorted lists near the top, bit by bit below.
TEST_F(VectorBackendTest, EveryClipRank) {
  for (const CodecCase& page : Cases()) {
    if (page.name != "SmolLM2 tokens 256" && page.name != "hostile d=128") continue;
    for (int rank = 0; rank <= 64; rank += rank < 48 ? 8 : 1) {
      CodecDescriptor d = Oscar(page);
      d.clip_k = d.clip_v = std::min(1.0f, static_cast<float>(rank) / 64.0f + 1e-3f);
      SCOPED_TRACE(page.name + " ratio " + std::to_string(d.clip_k));
      EXPECT_EQ(testing::CountWrongBytes(page, d, TestedBackend()), 0u);
    }
  }
}

TEST_F(VectorBackendTest, DecodersAreExact) {
  for (const CodecCase& page : Cases()) {
    std::vector<CodecDescriptor> forms = AffineForms(page);
    for (const CodecKind kind :
         {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kCrumbInt4})
      forms.push_back(DefaultOf(kind, page.set));
    for (const CodecDescriptor& d : forms) {
      SCOPED_TRACE(page.name + " " + ToString(d.kind));
      EXPECT_EQ(testing::CompareDecoders(page, d, TestedBackend(), true).different, 0u);
      const auto pages = testing::CompareDecoders(page, d, TestedBackend(), false);
      EXPECT_EQ(pages.beyond, 0u);
      EXPECT_LE(pages.different * 200, pages.values);
    }
  }
}

// Whatever bytes come: the same values up to the rotation, and near ones after it.
TEST_F(VectorBackendTest, DamagedPayloadsDecodeTheSame) {
  const CodecCase page = testing::MadeUpCase(128, 1);
  std::vector<CodecDescriptor> forms = AffineForms(page);
  for (const CodecKind kind : {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kCrumbInt4})
    forms.push_back(DefaultOf(kind, page.set));
  const uint32_t hostile[] = {0x7fc00000, 0x7f800000, 0xff7fffff, 0x00000001, 0x80000000,
                              0x04d4ad5f, 0x3f800000, 0x7f7f7f7f, 0xbf8040c0, 0x00800080};
  Rng rng(77);
  for (const CodecDescriptor& d : forms) {
    SCOPED_TRACE(std::string(ToString(d.kind)) + " group " + std::to_string(d.group));
    const PayloadLayout layout = *PayloadLayout::Make(page.part, d);
    codec_test::Bench vector(page.part, d, page.set);
    const auto reference = *PageCodec::Create(page.part, d, page.set, CodecBackend::kReference);
    const auto scratch = reference->MakeScratch();
    std::vector<uint8_t> want(page.raw.size());
    vector.Encode(page.raw, 64);
    const std::vector<uint8_t> sound = vector.payload;
    for (const uint32_t word : hostile) {
      vector.payload = sound;
      for (const TensorLayout& tensor : layout.tensors()) {
        uint8_t* meta = vector.payload.data() + tensor.offset + tensor.meta_offset;
        const size_t words = size_t{64} * tensor.meta_row_bytes / 4;
        std::memcpy(meta + 4 * rng.Below(words), &word, 4);
        for (uint32_t i = 0; i < 64; ++i) {  // codes
          vector.payload[tensor.offset + rng.Below(tensor.meta_offset)] =
              static_cast<uint8_t>(rng.Below(256));
        }
      }
      ASSERT_TRUE(vector.Decode(64, Frame::kRotated));
      ASSERT_TRUE(reference->Decode(vector.payload, 64, Frame::kRotated, absl::MakeSpan(want),
                                    scratch.get()));
      ASSERT_EQ(vector.back, want) << std::hex << word;
    }
  }
}

TEST_F(VectorBackendTest, SearchesAgree) {
  for (const CodecKind kind :
       {CodecKind::kCrumbInt2, CodecKind::kCrumbK3V2, CodecKind::kCrumbInt4}) {
    for (const Effort effort : {Effort::kDraft, Effort::kNormal, Effort::kBest}) {
      SCOPED_TRACE(std::string(ToString(kind)) + " " + ToString(effort));
      testing::SearchAgreement total;
      for (const CodecCase& page : Cases()) {
        const auto one =
            testing::CompareEncoders(page, DefaultOf(kind, page.set), TestedBackend(), effort);
        EXPECT_TRUE(one.reports_agree) << page.name;
        if (!page.hostile) total.Add(one);
      }
      EXPECT_GE(static_cast<double>(total.codes_equal), 0.995 * static_cast<double>(total.codes));
      EXPECT_NEAR(total.error / total.error_reference, 1.0, 0.005);
    }
  }
}

// A page that is encoded later, elsewhere, by another thread's scratch has the same bytes.
TEST_F(VectorBackendTest, OnePageOnePayload) {
  for (const CodecCase& page : Cases()) {
    for (const CodecKind kind : LossyKinds()) {
      SCOPED_TRACE(page.name + " " + ToString(kind));
      const CodecDescriptor d = DefaultOf(kind, page.set);
      codec_test::Bench first(page.part, d, page.set), later(page.part, d, page.set);
      // The later scratch has seen another page and another effort.
      later.Encode(codec_test::RandomPage(page.part.raw_bytes, 3), 64, Effort::kBest);
      ASSERT_EQ(first.Encode(page.raw, page.tokens).result, BlockResult::kOk);
      ASSERT_TRUE(first.Decode(page.tokens));
      for (const size_t shift : {1, 2, 33}) {
        std::vector<uint8_t> raw(page.raw.size() + shift), payload(first.payload.size() + shift);
        std::memcpy(raw.data() + shift, page.raw.data(), page.raw.size());
        const auto in = absl::MakeConstSpan(raw).subspan(shift);
        const auto out = absl::MakeSpan(payload).subspan(shift);
        later.codec->Encode(in, page.tokens, Effort::kNormal, out, later.scratch.get());
        ASSERT_EQ(std::memcmp(out.data(), first.payload.data(), out.size()), 0) << shift;
        const auto back = absl::MakeSpan(raw).subspan(shift);
        ASSERT_TRUE(
            later.codec->Decode(out, page.tokens, Frame::kOriginal, back, later.scratch.get()));
        ASSERT_EQ(std::memcmp(back.data(), first.back.data(), back.size()), 0) << shift;
      }
    }
  }
}

// Rows do not depend on how many others are in the page (without a page mean).
TEST_F(VectorBackendTest, PartialPagesHoldTheSameRows) {
  const CodecCase page = testing::MadeUpCase(128, 2);
  const CodecDescriptor d = Oscar(page);
  codec_test::Bench whole(page.part, d, page.set), part(page.part, d, page.set);
  whole.Encode(page.raw, 64);
  const PayloadLayout layout = *PayloadLayout::Make(page.part, d);
  for (uint32_t tokens = 1; tokens < 64; ++tokens) {
    part.Encode(page.raw, tokens);
    for (const TensorLayout& tensor : layout.tensors()) {
      for (uint32_t head = 0; head < tensor.heads; ++head) {
        const size_t at = tensor.offset + size_t{head} * tensor.head_bytes;
        ASSERT_EQ(std::memcmp(whole.payload.data() + at, part.payload.data() + at,
                              size_t{tokens} * tensor.code_row_bytes),
                  0);
        for (size_t i = size_t{tokens} * tensor.code_row_bytes; i < tensor.meta_offset; ++i) {
          ASSERT_EQ(part.payload[at + i], 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace crumb
